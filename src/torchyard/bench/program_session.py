"""Compare whole programs: `torchyard bench --command A --command B`.

Every run of a program is a separate process, so a pair of runs (baseline and candidate, in random
order) is a launch with one pair. Wall time is measured from the start of the process to its end.
"""

from __future__ import annotations

import random
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from torchyard.bench.outcome import SessionData, make_estimate
from torchyard.bench.preparation import PreparationState
from torchyard.bench.session import Recorder
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, Failure, VariantMetrics
from torchyard.core.events import Event, EventKind, Listener
from torchyard.core.study import COMMAND_SUITE, Budget, Study, Target, Variant, Workload
from torchyard.core.units import format_bytes, format_duration
from torchyard.errors import UsageError
from torchyard.files.safe_reading import read_part
from torchyard.machine.facts.load import processor_times
from torchyard.machine.guards.block_check import (
    FEW_SAMPLES,
    WAITED,
    judge,
    reading_from,
)
from torchyard.machine.guards.host_guards import HostGuards
from torchyard.machine.knob import Machine
from torchyard.process.ending import Ending
from torchyard.process.programs import ProgramRun, ProgramStarter
from torchyard.stats.estimate import decided
from torchyard.stats.pairs import pair_blocks
from torchyard.stats.stopping import InterimAnalysis

MIN_PAIRS: Final = 5
"""Minimum number of pairs, independent of the time budget: fewer rarely allow a verdict."""
MAX_PAIRS: Final = 1000
WARM_UP_RUNS: Final = 1
_GROWTH: Final = 1.25
"""Factor between the numbers of pairs at successive interim analyses."""
_OTHERS_SHARE: Final = 0.1
"""CPU time of other processes, as a share of a core, from which on waiting is attributed to them."""
_TAIL_BYTES: Final = 4000
_FOLDER: Final = "folder"
_SHELL: Final = "shell"
_WARM_UP: Final = "warmup"
_TICKS_PER_S: Final = 100.0


def program_study(commands: Sequence[str], *, shell: bool, warm_up: int, budget: Budget) -> Study:
    """Return the study of these commands; the first one is the baseline."""
    for command in commands:
        command_of(command, by_shell=shell)
    names: list[str] = []
    for command in commands:
        name = " ".join(command.split())
        names.append(name if name not in names else f"{name}-again")
    if len(set(names)) < len(names):
        raise UsageError("a command is given more than twice", hint="remove the repetition")
    variants = [
        Variant(
            name=name,
            target=Target(name=f"command {number}", python=""),
            backend="command",
            options=(
                ("command", command),
                (_FOLDER, str(Path.cwd())),
                (_SHELL, shell),
                (_WARM_UP, warm_up),
            ),
        )
        for number, (name, command) in enumerate(zip(names, commands, strict=True), 1)
    ]
    return Study(
        name="bench",
        baseline=variants[0],
        candidates=tuple(variants[1:]),
        workloads=(Workload(suite=COMMAND_SUITE, name=names[0]),),
        budget=budget,
    )


def command_of(text: str, *, by_shell: bool) -> list[str]:
    """Return the arguments of a command; without a shell, it is split as a shell would split it."""
    if by_shell:
        return ["/bin/sh", "-c", text]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--command: {text!r} cannot be split", why=str(error), hint="close every quote"
        ) from error
    if not words:
        raise UsageError("--command: the command is empty", hint='write --command "python a.py"')
    special = next((word for word in words if word in {"|", "||", "&&", ";", ">", "<", "&"}), "")
    if special:
        raise UsageError(
            f"--command: {text!r} contains {special!r}, which only a shell understands",
            hint="add --shell to run the commands by /bin/sh, or quote the character",
        )
    return words


class ProgramSession(SessionData):
    """Measurement of the commands of a study; `comparisons` can be read at any time."""

    def __init__(
        self,
        study: Study,
        workload: Workload,
        *,
        recorder: Recorder,
        log_folder: Path,
        listener: Listener,
        chance: random.Random,
    ) -> None:
        super().__init__(study, workload)
        self._recorder = recorder
        self._log_folder = log_folder
        self._listener = listener
        self._chance = chance
        self._runs: dict[str, list[ProgramRun]] = defaultdict(list)
        self._began_s: float | None = None
        self._watch = RunWatch()

    def run(self) -> list[Comparison]:
        """Measure until every candidate is decided or failed, or the time is used up."""
        self._log_folder.mkdir(parents=True, exist_ok=True)
        try:
            folder = Path(str(dict(self._study.baseline.options)[_FOLDER]))
            with ProgramStarter(folder) as starter:
                self._warm_up(starter)
                self._began_s = time.monotonic()
                number, next_analysis = 0, self._study.budget.min_launches
                while self._active:
                    self._pair(starter, number)
                    number += 1
                    last = self._is_last(number)
                    if last or number >= next_analysis:
                        self._analyze(last=last)
                        next_analysis = max(number + 1, round(number * _GROWTH))
        finally:
            self._watch.guards.close()
        return self.comparisons()

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons with the data so far."""
        metrics = {name: _metrics(runs) for name, runs in self._runs.items()}
        notes = [(name, _use_text(one)) for name, one in metrics.items()]
        prepared = PreparationState(metrics=metrics, notes=notes)
        return self._make_comparisons(self._study.candidates, prepared, self._fraction)

    @property
    def _elapsed_s(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    @property
    def _fraction(self) -> float:
        return min(0.999, max(1e-6, self._elapsed_s / self._study.budget.time_s))

    def _is_last(self, pairs: int) -> bool:
        """Whether no further pair fits the time; half of one may exceed it."""
        budget = self._study.budget
        if pairs >= budget.max_launches:
            return True
        if self._elapsed_s * (1 + 0.5 / pairs) < budget.time_s:
            return False
        usable = [
            pair_blocks(self._blocks, self._study.baseline.name, candidate.name).usable
            for candidate in self._active
        ]
        # Disturbed pairs are replaced, up to a limit.
        return min(usable, default=pairs) >= budget.min_launches or pairs >= 2 * budget.min_launches

    def _warm_up(self, starter: ProgramStarter) -> None:
        for variant in self._study.variants:
            for _ in range(int(dict(variant.options)[_WARM_UP])):
                if variant == self._study.baseline or variant in self._active:
                    self._say("phase", f"warm-up: {variant.name}")
                    self._start(starter, variant, "warm-up", launch=0)

    def _pair(self, starter: ProgramStarter, number: int) -> None:
        """Run the baseline and every active candidate once, in random order."""
        self._say("phase", f"pair {number + 1}")
        order = [self._study.baseline, *self._active]
        self._chance.shuffle(order)
        blocks = []
        started_s = time.monotonic()
        for position, variant in enumerate(order):
            self._watch.begin()
            run = self._start(starter, variant, "timing", launch=number)
            readings = self._watch.end()
            if run is None:
                if variant == self._study.baseline:
                    return
                continue
            self._runs[variant.name].append(run)
            blocks.append(block_of_run(run, readings, number, position, variant.name))
        self._blocks += blocks
        self._recorder.add_blocks(self._workload, blocks)
        self._spent.launches += 1
        self._spent.elapsed_s = self._elapsed_s
        self._spent.rounds_s += time.monotonic() - started_s
        self._spent.timed_s += sum(block.wall_ns for block in blocks) / 1e9
        self._recorder.add_launch(
            {
                "workload": self._workload.label,
                "launch": number,
                "variants": [block.variant for block in blocks],
                "start_s": 0.0,
                "guards": dict(self._watch.guards.states),
            }
        )

    def _start(
        self, starter: ProgramStarter, variant: Variant, phase: str, *, launch: int
    ) -> ProgramRun | None:
        """Run a program once; remove it if it fails, or all candidates if it is the baseline."""
        options = dict(variant.options)
        argv = command_of(str(options["command"]), by_shell=bool(options[_SHELL]))
        number = self._study.variants.index(variant)
        log = self._log_folder / f"command-{number}.stderr"
        limit_s = self._study.settings.step_limit_s
        run = starter.run(argv, stderr=log, limit_s=limit_s)
        if not run.failed:
            return run
        failure = failure_of_run(run, variant.name, phase, log, limit_s)
        self._say("warning", f"{variant.name} failed: {failure.message}")
        is_baseline = variant == self._study.baseline
        for candidate in list(self._active) if is_baseline else [variant]:
            self._failures[candidate.name] = failure
            self._failed_in[candidate.name] = launch
            self._active.remove(candidate)
        return None

    def _analyze(self, *, last: bool) -> None:
        """Analyze each active candidate, and stop the decided ones."""
        budget = self._study.budget
        for candidate in list(self._active):
            paired = pair_blocks(self._blocks, self._study.baseline.name, candidate.name)
            if not last and not (
                budget.precision_goal > 0 and paired.usable >= budget.min_launches
            ):
                continue
            analyses = self._analyses[candidate.name]
            fraction = 1.0 if last else self._fraction
            analyses.append(InterimAnalysis(launches=len(paired.medians), fraction=fraction))
            estimate = make_estimate(paired, analyses, budget, self._spent)
            self._say("look", f"{candidate.name} {estimate.speedup:.3f}x {estimate.verdict}")
            if last or decided(estimate, budget):
                self._stop(candidate)

    def _say(self, kind: EventKind, text: str) -> None:
        budget = self._study.budget
        self._listener(
            Event(
                kind=kind,
                text=text,
                workload=self._workload.label,
                fraction=self._fraction if self._began_s is not None else 0.0,
                remaining_s=max(0.0, budget.time_s - self._elapsed_s),
            )
        )


def _busy_s(before: Sequence[int], after: Sequence[int]) -> float:
    """Return the busy time of all CPUs between two readings; columns 3 and 4 are idle time."""
    if len(before) < 5 or len(after) < 5:  # noqa: PLR2004
        return 0.0
    busy = [sum(times) - times[3] - times[4] for times in (before, after)]
    return (busy[1] - busy[0]) / _TICKS_PER_S


@dataclass(frozen=True, kw_only=True)
class RunReadings:
    """Readings of the machine around one run of a program."""

    host: dict[str, int | float | None]
    busy_s: float
    """CPU time of all processes."""


class RunWatch:
    """Reads the guards of the machine around each run of a program."""

    def __init__(self) -> None:
        self.guards = HostGuards()
        self._files = Machine().files
        self._ticks: Sequence[int] = ()

    def begin(self) -> None:
        """Read before a run."""
        self._ticks = processor_times(self._files)
        self.guards.begin()

    def end(self) -> RunReadings:
        """Read after the run."""
        host = self.guards.end()
        return RunReadings(host=host, busy_s=_busy_s(self._ticks, processor_times(self._files)))


def block_of_run(
    run: ProgramRun, readings: RunReadings, launch: int, position: int, variant: str
) -> Block:
    """Return the block of one run.

    Page faults, context switches and waiting are part of a program, unless other processes caused
    the waiting.
    """
    reading = reading_from(readings.host)
    others_s = readings.busy_s - run.cpu_ns / 1e9
    wait_ns = run.run_queue_wait_ns
    dirty = judge(
        replace(reading, run_queue_wait_ns=wait_ns or 0),
        wall_ns=run.wall_ns,
        samples=FEW_SAMPLES,
        threads=1,
    )
    if others_s < _OTHERS_SHARE * run.wall_ns / 1e9:
        dirty = tuple(reason for reason in dirty if reason != WAITED)
    return Block(
        launch=launch,
        round=0,
        position=position,
        variant=variant,
        seat=0,
        inner=1,
        samples_ns=(float(run.wall_ns),),
        started_ns=run.started_ns,
        wall_ns=run.wall_ns,
        guard=replace(
            reading,
            cpu_ns=run.cpu_ns,
            run_queue_wait_ns=wait_ns,
            involuntary_switches=run.involuntary_switches,
            major_faults=run.major_faults,
        ),
        dirty=dirty,
        whole_process=True,
    )


def _metrics(runs: Sequence[ProgramRun]) -> VariantMetrics:
    return VariantMetrics(
        peak_memory_bytes=round(median(run.peak_memory_bytes for run in runs)),
        memory_method="largest resident set, median over runs",
        cpu_time_ns=float(median(run.cpu_ns for run in runs)),
    )


def _use_text(metrics: VariantMetrics) -> str:
    cpu_time = format_duration(metrics.cpu_time_ns or 0.0)
    return f"used {cpu_time} CPU time and {format_bytes(metrics.peak_memory_bytes or 0)} of memory"


def failure_of_run(run: ProgramRun, variant: str, phase: str, log: Path, limit_s: float) -> Failure:
    """Return why a run failed, with the end of its standard error."""
    tail = (
        read_part(log, max(0, log.stat().st_size - _TAIL_BYTES), _TAIL_BYTES)
        if log.exists()
        else b""
    )
    if run.error:
        kind, message = "no-start", f"cannot be started: {run.error}"
        hint = "check the name of the program; --shell is needed for shell syntax"
    elif run.timed_out:
        kind, message = "timeout", f"timed out after {format_duration(limit_s * 1e9)}"
        hint = "raise --step-limit"
    else:
        code = run.exit_code
        ending = Ending(exit_code=code) if code >= 0 else Ending(signal_number=-code)
        kind, message = ("exit-code" if code > 0 else "crashed"), ending.description
        hint = "check the last lines of its standard error" if code > 0 else ending.hint
    return Failure(
        kind=kind,
        phase=phase,
        variant=variant,
        message=message,
        hint=hint,
        log=str(log),
        log_tail=tail.decode("utf-8", "replace"),
    )

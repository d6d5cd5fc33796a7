"""Measure one workload with all candidates: launches, interim analyses, and when to stop.

A launch starts fresh processes, measures rounds, and ends them. After each launch from the
`min_launches`-th on there is an interim analysis, with the share of the time budget that is used as
the information fraction, so that `stats.stopping` controls the error rate for any number of
analyses. A decided candidate is no longer measured; the session ends when none remains, when the time budget
is used up, or when a verdict within it is very unlikely (`bench.pacing`).
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Protocol

from torchyard.bench.launch import (
    LaunchDraw,
    LaunchProcesses,
    VariantFailed,
    draw_launch,
    threads_of,
)
from torchyard.bench.launch_gate import LaunchGate, LaunchStopped, ProvisionalResults
from torchyard.bench.launch_templates import FORK_AFTER, MIN_FORKED, LaunchTemplates, may_fork
from torchyard.bench.outcome import SessionData, make_estimate
from torchyard.bench.pacing import SessionClock, SessionProgress, later_start_s, min_rounds
from torchyard.bench.preparation import (
    LATER_WARM_UP_LIMIT_S,
    PreparationState,
    check_accuracy,
    compile_variant,
    measure_energy,
    measure_metrics,
    recheck,
    warm_up,
)
from torchyard.bench.roofline.machine_peak import find_peak, machine_of, read_peaks
from torchyard.bench.rounds import LaunchTiming, choose_reseat, run_rounds
from torchyard.bench.timeline import OTHER, WAITING, Timeline
from torchyard.core.block import Block
from torchyard.core.comparison import UNTRUSTED, Comparison
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.events import Event, EventKind, Listener
from torchyard.core.study import SCRIPT_SUITE, Study, Variant, Workload
from torchyard.machine.facts import read_facts
from torchyard.machine.guards.block_check import ProbeBaseline, guard_states
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.machine.guards.host_guards import HostGuards
from torchyard.process.templates import TemplateSource
from torchyard.process.timing_turn import TimingTurn
from torchyard.stats.estimate import decided, interim_result
from torchyard.stats.pairs import pair_blocks
from torchyard.stats.stopping import InterimAnalysis

_ISOLATED: Final = "each candidate is measured in its own process, after a shared one crashed"


class Recorder(Protocol):
    """Receiver of results as they arrive."""

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:
        """Record what a target reports about itself."""

    def add_launch(self, record: Mapping[str, object]) -> None:
        """Record a finished launch."""

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:
        """Record the blocks of a round."""


class WorkloadSession(SessionData):
    """Measurement of one workload; `comparisons` can be read at any time, also after an interrupt."""

    def __init__(
        self,
        study: Study,
        workload: Workload,
        *,
        recorder: Recorder,
        log_folder: Path,
        scratch: Path,
        listener: Listener,
        chance: random.Random,
        turn: TimingTurn | None = None,
        cache: Path | None = None,
        templates: TemplateSource | None = None,
        fork_at_once: bool = True,
        gate: LaunchGate | None = None,
        processes_of: Callable[..., LaunchProcesses] = LaunchProcesses,
    ) -> None:
        """`turn` serializes timing with other sessions; `cache` is a folder of compiled artifacts.

        Processes are forked from `templates`, where given and safe: at once, or only when many launches
        follow. Each launch waits for the permission of `gate`.
        `processes_of` creates the processes of a launch.
        """
        super().__init__(study, workload)
        self._processes_of = processes_of
        self._recorder = recorder
        self._log_folder = log_folder
        self._scratch = scratch
        self._cache = cache
        self._templates = None if templates is None else LaunchTemplates(templates, study.settings)
        self._forks = fork_at_once
        self._first_forked = 0
        self._listener = listener
        self._chance = chance
        self._number = 0
        self._recorded: set[tuple[str, str]] = set()
        self._isolated = workload.suite == SCRIPT_SUITE
        """Whether each candidate has its own process: a script, or because a shared one crashed."""
        self._prepared = PreparationState()
        self._clock = SessionClock(study.budget)
        self._timeline = Timeline()
        compiled = sum(one.backend != "eager" for one in study.variants)
        self._turn = TimingTurn() if turn is None else turn
        self._gate = LaunchGate() if gate is None else gate
        self._progress = SessionProgress(self._clock, compiled=compiled, began=self._active_s)
        self._watch = HostGuards()
        self._usual = ProbeBaseline()
        self._gpu = GpuGuard(
            workload.device,
            environment=_cuda_environment(study),
            counts_other_cells=bool(self._turn.reserved),
        )
        if workload.device != "cpu" and self._gpu.why_not:
            self._spent.notes.append(f"GPU clock unavailable, because {self._gpu.why_not}")
        fewer = len(self._turn.preparing) < len(self._turn.reserved)
        if fewer and compiled:
            self._spent.notes.append(
                f"compiled on {len(self._turn.preparing)} cores and timed on {len(self._turn.reserved)}"
            )
        if self._gpu.why_no_reasons:
            self._spent.notes.append(f"GPU throttling unknown, because {self._gpu.why_no_reasons}")

    def run(self) -> list[Comparison]:
        """Measure until every candidate is decided, failed or out of time."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            while self._active:
                if not self._admitted():
                    self._end_early()
                    break
                try:
                    self._stoppable_launch()
                except VariantFailed as failed:
                    self._remove_failed(failed)
                else:
                    self._analyze()
                self._number += 1
        except LaunchStopped:
            self._end_early()
        finally:
            self._watch.close()
            self._gpu.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return self.comparisons()

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons with the data so far."""
        candidates = map(self._placed, self._study.candidates)
        return self._make_comparisons(candidates, self._prepared, self._clock.fraction)

    def _admitted(self) -> bool:
        """Wait for the next launch; the wait is not measuring time."""
        try:
            with self._timeline.phase(WAITING):
                return self._gate.admits(self._provisional)
        finally:
            self._clock.waited(self._turn.waited_s + self._gate.waited_s)

    def _active_s(self) -> float:
        """Return the elapsed time without the time in which the session waited for others."""
        return time.monotonic() - self._turn.waited_s - self._gate.waited_s

    def _provisional(self) -> ProvisionalResults:
        return ProvisionalResults(
            launches=self._spent.launches,
            undecided=tuple(candidate.name for candidate in self._active),
            comparisons=tuple(self.comparisons()),
        )

    def _end_early(self) -> None:
        """Run the final analysis of all remaining candidates with the launches so far."""
        self._clock.waited(self._turn.waited_s + self._gate.waited_s)
        if self._gate.why_closed:
            self._spent.notes.append(self._gate.why_closed)
        if self._blocks:
            self._spent.elapsed_s = self._clock.elapsed_s
            self._analyze(last=True)

    def _stoppable_launch(self) -> None:
        try:
            with self._timeline.phase(OTHER):
                finished = self._launch(self._number)
            self._record(self._number, *finished)
        finally:
            self._gate.launch_ended()

    def _launch(self, number: int) -> tuple[LaunchProcesses, LaunchDraw, LaunchTiming]:
        """Start fresh processes, prepare them and measure rounds; warm-up and timing run exclusively."""
        variants = [self._placed(one) for one in (self._study.baseline, *self._active)]
        draw = draw_launch(self._chance)
        folder = self._log_folder / f"launch-{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as turn:
            with self._timeline.phase(WAITING):
                turn.enter_context(self._turn)
            self._say("phase", f"launch {number + 1}: starting")
            started_s = self._active_s()
            with self._processes_of(
                self._workload,
                variants,
                self._study.settings,
                draw=draw,
                log_folder=folder,
                scratch=self._scratch,
                cache=self._cache,
                templates=self._templates_for(number, variants),
                number=number - self._first_forked,
                timeline=self._timeline,
                compiled_before=all(v.name in self._prepared.first_calls_s for v in variants),
            ) as processes:
                process_s = self._active_s() - started_s
                self._note_start(processes)
                self._note_device(processes)
                self._record_targets(processes)
                if number == 0:
                    self._find_peaks(processes)
                checking_s = self._active_s()
                self._check_and_compile(processes)
                checking_s = self._active_s() - checking_s
                with self._timeline.phase(WAITING):
                    self._turn.alone()
                warming_s = self._active_s()
                for variant in processes.variants:
                    warm_up(processes, variant, self._prepared)
                warming_s = self._active_s() - warming_s
                self._measure_metrics(processes)
                start_s = self._active_s() - started_s
                round_s = self._round_s(processes)
                self._clock.launch_ready(
                    start_s,
                    round_s=round_s,
                    later_start_s=later_start_s(
                        processes_s=max(0.0, process_s - processes.template_s),
                        compiling_s=min(checking_s, self._first_calls_s(processes)),
                        warming_s=min(warming_s, len(variants) * LATER_WARM_UP_LIMIT_S),
                    )
                    if number == 0
                    else start_s - processes.template_s,
                    waited_s=self._turn.waited_s + self._gate.waited_s,
                )
                if (why := self._clock.why_one_launch()) and why not in self._spent.notes:
                    self._spent.notes.append(why)
                    self._say("warning", why)
                self._say("phase", f"launch {number + 1}: timing")
                self._gpu.begin_launch()
                timing = run_rounds(
                    processes,
                    self._prepared,
                    launch=number,
                    seconds=self._clock.seconds_for_rounds(),
                    min_rounds=min_rounds(round_s),
                    chance=self._chance,
                    gpu=self._gpu,
                    watch=self._watch,
                    usual=self._usual,
                    device_users=self._turn.device_users,
                    on_round=self._keep,
                )
                self._turn.timed()
                rechecking_s = self._active_s()
                self._recheck(processes, number)
                rechecking_s = self._active_s() - rechecking_s
                self._clock.waited(self._turn.waited_s + self._gate.waited_s)
        self._clock.launch_done(wall_s=timing.wall_s, rounds=timing.rounds, after_s=rechecking_s)
        self._spent.elapsed_s = self._clock.elapsed_s
        self._spent.rounds_s += timing.wall_s
        self._spent.timed_s += timing.timed_s
        self._spent.launches += 1
        return processes, draw, timing

    def _note_start(self, processes: LaunchProcesses) -> None:
        """Note why a process was not forked from a template."""
        for key, reason in processes.not_forked.items():
            note = f"{'+'.join(key)} was not forked from a template process: {reason}"
            if reason and note not in self._spent.notes:
                self._spent.notes.append(note)

    def _note_device(self, processes: LaunchProcesses) -> None:
        """Note what limits the results on the device; list those of a backend that the workload registers."""
        for key, built in processes.built.items():
            self._spent.notes += [
                note for note in built.get("notes") or () if note not in self._spent.notes
            ]
            if "devices" in built:
                processes.hellos[key]["devices"] = built["devices"]

    def _check_and_compile(self, processes: LaunchProcesses) -> None:
        baseline, *candidates = processes.variants
        reference = self._scratch / "reference.pt"
        if self._study.settings.check_accuracy:
            unchecked = [one for one in candidates if one.name not in self._prepared.accuracy]
            for candidate in unchecked:
                self._say("phase", f"checking and compiling {candidate.name}")
                last = candidate is unchecked[-1]
                try:
                    check_accuracy(
                        processes, baseline, candidate, reference, self._prepared, last=last
                    )
                except VariantFailed as failed:
                    self._remove_unbuildable(candidate, processes, failed)
        for variant in processes.variants:
            compile_variant(processes, variant)

    def _templates_for(self, number: int, variants: Sequence[Variant]) -> LaunchTemplates | None:
        """Return the templates if this launch is forked; starting them pays off in several launches."""
        if not self._forks and number >= FORK_AFTER:
            self._forks = self._clock.forked_launches_left() >= MIN_FORKED
            self._first_forked = number
        return self._templates if self._forks and may_fork(self._study.settings, variants) else None

    def _find_peaks(self, processes: LaunchProcesses) -> None:
        """Look up measured peaks of this machine for the plausibility check."""
        if not read_peaks():
            return
        facts, device = read_facts(), self._workload.device
        for variant in processes.variants:
            hello = processes.hellos[variant.process_key]
            peak = find_peak(
                machine_of(facts, hello, device),
                device,
                variant.precision,
                threads_of(variant, self._study.settings, self._workload.ranks_per_node)
                if device == "cpu"
                else 0,
                torch_version=str(hello.get("torch", "")),
            )
            if peak is not None:
                self._prepared.peaks[variant.name] = peak

    def _recheck(self, processes: LaunchProcesses, number: int) -> None:
        """Check every candidate again; if a process crashes here, its blocks are kept."""
        if not self._prepared.is_checked:
            return
        self._say("phase", f"launch {number + 1}: checking results again")
        dead: set[tuple[str, str]] = set()
        for candidate in processes.variants:
            if candidate.name not in self._prepared.accuracy or candidate.process_key in dead:
                continue
            try:
                recheck(processes, candidate, self._prepared, launch=number)
            except VariantFailed:
                dead.add(candidate.process_key)

    def _remove_unbuildable(
        self, candidate: Variant, processes: LaunchProcesses, failed: VariantFailed
    ) -> None:
        """Remove a candidate that cannot be built; the others continue in the same processes."""
        harmless = failed.process_alive and failed.failure.kind == "cannot-build"
        if not harmless or failed.failure.variant != candidate.name or len(self._active) == 1:
            raise failed
        self._remove_failed(failed)
        processes.remove(candidate)

    def _first_calls_s(self, processes: LaunchProcesses) -> float:
        """Return the time of the first calls in this launch, in which variants compile."""
        calls = self._prepared.first_calls_s
        return sum(calls[variant.name][-1] for variant in processes.variants)

    def _measure_metrics(self, processes: LaunchProcesses) -> None:
        for variant in processes.variants:
            if variant.name not in self._prepared.metrics:
                measure_metrics(processes, variant, self._prepared)
                measure_energy(processes, variant, self._prepared, self._gpu)

    def _round_s(self, processes: LaunchProcesses) -> float:
        """Return the expected duration of a round, from the warm-up."""
        plans, iteration_ns = self._prepared.plans, self._prepared.iteration_ns
        round_ns = sum(
            plans[one.name].iterations * iteration_ns[one.name] for one in processes.variants
        )
        return round_ns / 1e9

    def _keep(self, blocks: list[Block]) -> None:
        self._blocks.extend(blocks)
        self._recorder.add_blocks(self._workload, blocks)

    def _analyze(self, *, last: bool = False) -> None:
        """Run an interim analysis of each active candidate, and stop the decided ones."""
        baseline = self._study.baseline.name
        pairs = {one.name: pair_blocks(self._blocks, baseline, one.name) for one in self._active}
        self._clock.learn([interim_result(one.medians) for one in pairs.values()])
        last = last or self._clock.is_last_launch()
        if self._clock.why_ended:
            self._spent.notes.append(self._clock.why_ended)
        for candidate in list(self._active):
            paired = pairs[candidate.name]
            enough = paired.usable >= self._study.budget.min_launches
            planned = self._study.budget.precision_goal > 0 and enough
            if not (last or planned):
                continue
            analyses = self._analyses[candidate.name]
            fraction = 1.0 if last else self._clock.fraction
            if analyses and analyses[-1].launches == len(paired.medians):
                analyses.pop()  # the final analysis of the same launches replaces the interim one
            analyses.append(InterimAnalysis(launches=len(paired.medians), fraction=fraction))
            estimate = make_estimate(paired, analyses, self._study.budget, self._spent)
            interval_text = ""
            if estimate.interval is not None:
                interval_text = f" [{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]"
            verdict = UNTRUSTED if paired.busy else estimate.verdict
            self._say("look", f"{candidate.name} {estimate.speedup:.3f}x{interval_text} {verdict}")
            if last or decided(estimate, self._study.budget):
                self._stop(candidate)

    def _remove_failed(self, failed: VariantFailed) -> None:
        """Remove a failed candidate, or all of them if the baseline failed.

        If other candidates had run in the process that crashed, the cause is unknown. All candidates are
        measured further then, each in its own process from the next launch on.
        """
        name = failed.failure.variant
        crashed = failed.failure.kind == "crashed" and not failed.process_alive
        if crashed and not self._isolated and {c.name for c in self._active} & set(failed.suspects):
            self._isolated = True
            self._spent.notes.append(_ISOLATED)
            self._say("warning", f"a shared process crashed while {name} ran: {_ISOLATED}")
            return
        self._say("warning", f"{name} failed: {failed.failure.message}")
        removed = [c for c in self._active if c.name == name]
        if not removed:
            removed = list(self._active)
        for candidate in removed:
            self._failures[candidate.name] = failed.failure
            self._failed_in[candidate.name] = self._number
            self._active.remove(candidate)

    def _placed(self, variant: Variant) -> Variant:
        """Return the variant with the environment of the process that it runs in."""
        if not self._isolated or variant == self._study.baseline:
            return variant
        environment = variant.environment
        own = replace(environment, name=f"{environment.name}-{variant.name}")
        return replace(variant, environment=own)

    def _record_targets(self, processes: LaunchProcesses) -> None:
        """Record the handshake of each process once, under its name in the study."""
        for variant in processes.variants:
            own = next(one for one in self._study.variants if one.name == variant.name)
            if own.process_key not in self._recorded:
                self._recorded.add(own.process_key)
                hello = processes.hellos[variant.process_key]
                self._recorder.add_target("+".join(own.process_key), hello)

    def _record(
        self,
        number: int,
        processes: LaunchProcesses,
        draw: LaunchDraw,
        timing: LaunchTiming,
    ) -> None:
        settings = self._study.settings
        gpu_state = {} if self._workload.device == "cpu" else {"GPU": self._gpu.why_not}
        self._recorder.add_launch(
            {
                "workload": self._workload.label,
                "launch": number,
                "variants": [variant.name for variant in processes.variants],
                "start_s": self._clock.last_start_s,
                "draw": asdict(draw),
                "start": {
                    "+".join(key): "fresh: " + why
                    if (why := processes.not_forked.get(key))
                    else way
                    for key in processes.hellos
                    for way in ["fork" if key in processes.not_forked else "fresh"]
                },
                "timing": asdict(timing),
                "phases": self._timeline.take(),
                **self._cores_record(),
                "reseat": choose_reseat(settings.reseat, processes.variants, self._workload.device),
                "randomisation_off": {
                    "+".join(key): hello.get("randomisation_off")
                    for key, hello in processes.hellos.items()
                },
                "guards": guard_states(
                    [block.guard for block in self._blocks if block.launch == number],
                    self._watch.states | gpu_state,
                ),
            }
        )

    def _cores_record(self) -> dict[str, object]:
        """Return the CPUs of timing and preparation, if others prepared during timing."""
        if not self._turn.reserved:
            return {}
        cores = {"timed": self._turn.reserved, "preparing": self._turn.preparing}
        return {"cores": {name: cpu_list(cpus) for name, cpus in cores.items()}}

    def _say(self, kind: EventKind, text: str) -> None:
        self._listener(
            Event(
                kind=kind,
                text=text,
                workload=self._workload.label,
                fraction=self._progress.fraction,
                remaining_s=self._progress.remaining_s,
            )
        )


def _cuda_environment(study: Study) -> dict[str, str]:
    """Return the environment variable that selects the GPU `cuda:0` in the processes of the variants.

    If variants differ in it, the value matches no GPU: the clock of another GPU would be misleading.
    """
    environments = [
        {**os.environ, **dict(one.target.variables), **dict(one.environment.variables)}
        for one in study.variants
    ]
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    if len({tuple(one.get(name) for name in names) for one in environments}) > 1:
        return {**environments[0], "CUDA_VISIBLE_DEVICES": "different ones for different variants"}
    return environments[0]

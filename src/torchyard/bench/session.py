"""Measure one workload with all candidates: launches, interim analyses, and when to stop.

A launch starts fresh processes, measures rounds, and ends them. After each launch from the
`min_launches`-th on there is an interim analysis, with the share of the time budget that is used as
the information fraction, so that `stats.stopping` controls the error rate for any number of
analyses. A candidate that is decided leaves; the session ends when none remains or the time budget
is used up.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Protocol

from torchyard.bench.launch import Crew, LaunchDraw, VariantFailed, draw_launch, threads_of
from torchyard.bench.outcome import Spent, make_comparison, make_estimate
from torchyard.bench.preparation import (
    Knowledge,
    check_accuracy,
    compile_side,
    measure_energy,
    measure_metrics,
    recheck,
    warm_up,
)
from torchyard.bench.roofline.machine_peak import find_peak, machine_of, read_peaks
from torchyard.bench.rounds import LaunchTiming, Pace, choose_reseat, run_rounds
from torchyard.core.block import Block
from torchyard.core.comparison import UNTRUSTED, Comparison, Failure
from torchyard.core.events import Event, EventKind, Listener
from torchyard.core.study import Study, Variant, Workload
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.guards.block_check import UsualProbe, guard_states
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.machine.guards.host_guards import Watch
from torchyard.machine.knob import Machine
from torchyard.process.timing_turn import TimingTurn
from torchyard.stats.estimate import decided
from torchyard.stats.pairs import pair_blocks
from torchyard.stats.stopping import Look

__all__ = ["Recorder", "WorkloadSession"]

MIN_ROUNDS: Final = 6
FEWER_ROUNDS: Final = 3
LONG_ROUND_S: Final = 0.5
"""Rounds of so long a time average over what disturbs short ones: fewer of them make a launch."""
_APART: Final = "each candidate is measured in a process of its own, after a shared one crashed"


class Recorder(Protocol):
    """Where what was seen is kept, as it happens."""

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:
        """What a target said of itself."""

    def add_launch(self, record: Mapping[str, object]) -> None:
        """A launch that ended."""

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:
        """The blocks of a round."""


class WorkloadSession:
    """Measures one workload; `comparisons` can be read at any time, also after an interrupt."""

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
        machine: Machine | None = None,
        turn: TimingTurn | None = None,
        cache: Path | None = None,
    ) -> None:
        """`turn` is for machines where others measure too; `cache` holds what was compiled before."""
        self._study = study
        self._workload = workload
        self._recorder = recorder
        self._log_folder = log_folder
        self._scratch = scratch
        self._cache = cache
        self._listener = listener
        self._chance = chance
        self._active = list(study.candidates)
        self._failures: dict[str, Failure] = {}
        self._failed_in: dict[str, int] = {}
        """The launch in which a candidate failed, or the baseline for it."""
        self._number = 0
        self._recorded: set[tuple[str, str]] = set()
        self._apart = False
        """Whether each candidate has a process of its own, since a shared one crashed."""
        self._looks: dict[str, list[Look]] = {v.name: [] for v in study.candidates}
        self._spent_at_stop: dict[str, Spent] = {}
        self._blocks: list[Block] = []
        self._knowledge = Knowledge()
        self._spent = Spent()
        self._pace = Pace(study.budget)
        self._watch = Watch(machine)
        self._turn = TimingTurn() if turn is None else turn
        self._usual = UsualProbe()
        self._gpu = GpuGuard(workload.device, environment=_cuda_environment(study))
        if cache is not None and cache.exists():
            self._spent.notes.append("compile times are not those of empty caches")
        if workload.device != "cpu" and self._gpu.why_not:
            self._spent.notes.append(f"GPU clock unavailable, because {self._gpu.why_not}")

    def run(self) -> list[Comparison]:
        """Measure until every candidate is decided, failed, or out of time."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            while self._active:
                try:
                    self._launch(self._number)
                except VariantFailed as failed:
                    self._take_out(failed)
                else:
                    self._look()
                self._number += 1
        finally:
            self._watch.close()
            self._gpu.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return self.comparisons()

    def comparisons(self) -> list[Comparison]:
        """The rows as they stand now."""
        return [
            make_comparison(
                self._workload,
                self._study.baseline,
                self._placed(candidate),
                blocks=self._blocks_of(candidate),
                looks=self._looks_for_now(candidate),
                budget=self._study.budget,
                knowledge=self._knowledge,
                spent=self._spent_at_stop.get(candidate.name, self._spent),
                failure=self._failures.get(candidate.name),
            )
            for candidate in self._study.candidates
        ]

    def _blocks_of(self, candidate: Variant) -> list[Block]:
        """All blocks, without the launch in which the candidate or its baseline failed."""
        failed_in = self._failed_in.get(candidate.name)
        if failed_in is None:
            return self._blocks
        return [block for block in self._blocks if block.launch < failed_in]

    def _looks_for_now(self, candidate: Variant) -> list[Look]:
        """The looks so far, and one more if an interrupted launch added pairs since."""
        looks = self._looks[candidate.name]
        paired = pair_blocks(self._blocks_of(candidate), self._study.baseline.name, candidate.name)
        launches = len(paired.medians)
        if launches == (looks[-1].launches if looks else 0):
            return looks
        return [*looks, Look(launches=launches, fraction=self._pace.fraction)]

    def _launch(self, number: int) -> None:
        """Fresh processes, preparation, rounds; the last two parts with the machine to ourselves."""
        variants = [self._placed(one) for one in (self._study.baseline, *self._active)]
        draw = draw_launch(self._chance)
        folder = self._log_folder / f"launch-{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        with self._turn:
            self._say("phase", f"launch {number + 1}: starting")
            started, waited_s = time.monotonic(), self._turn.waited_s
            with Crew(
                self._workload,
                variants,
                self._study.settings,
                draw=draw,
                log_folder=folder,
                scratch=self._scratch,
                cache=self._cache,
            ) as crew:
                self._record_targets(crew)
                if number == 0:
                    self._find_peaks(crew)
                self._check_and_compile(crew)
                self._turn.alone()
                self._warm_up(crew)
                start_s = time.monotonic() - started - (self._turn.waited_s - waited_s)
                self._pace.launch_ready(start_s, waited_s=self._turn.waited_s)
                self._say("phase", f"launch {number + 1}: measuring")
                timing = run_rounds(
                    crew,
                    self._knowledge,
                    launch=number,
                    seconds=self._pace.seconds_for_rounds(),
                    min_rounds=self._min_rounds(crew),
                    chance=self._chance,
                    gpu=self._gpu,
                    watch=self._watch,
                    usual=self._usual,
                    on_round=self._keep,
                )
                self._recheck(crew, number)
        self._pace.launch_done(timing)
        self._spent.elapsed_s = self._pace.elapsed_s
        self._spent.rounds_s += timing.wall_s
        self._spent.timed_s += timing.timed_s
        self._spent.launches += 1
        self._record(number, crew, draw, timing)

    def _check_and_compile(self, crew: Crew) -> None:
        baseline, *candidates = crew.variants
        reference = self._scratch / "reference.pt"
        if self._study.settings.check_accuracy:
            unchecked = [one for one in candidates if one.name not in self._knowledge.accuracy]
            for candidate in unchecked:
                self._say("phase", f"checking and compiling {candidate.name}")
                last = candidate is unchecked[-1]
                try:
                    check_accuracy(crew, baseline, candidate, reference, self._knowledge, last=last)
                except VariantFailed as failed:
                    self._go_on_without(candidate, crew, failed)
        for variant in crew.variants:
            compile_side(crew, variant)

    def _find_peaks(self, crew: Crew) -> None:
        """Peaks of this machine that were measured before, to hold times against."""
        if not read_peaks():
            return
        facts, device = read_facts(), self._workload.device
        for variant in crew.variants:
            hello = crew.hellos[variant.process_key]
            peak = find_peak(
                machine_of(facts, hello, device),
                device,
                variant.precision,
                threads_of(variant, self._study.settings) if device == "cpu" else 0,
                torch_version=str(hello.get("torch", "")),
            )
            if peak is not None:
                self._knowledge.peaks[variant.name] = peak

    def _recheck(self, crew: Crew, number: int) -> None:
        """Check every candidate again. A process that dies here has given its numbers already."""
        if not self._knowledge.is_checked:
            return
        self._say("phase", f"launch {number + 1}: checking results again")
        dead: set[tuple[str, str]] = set()
        for candidate in crew.variants:
            if candidate.name not in self._knowledge.accuracy or candidate.process_key in dead:
                continue
            try:
                recheck(crew, candidate, self._knowledge, launch=number)
            except VariantFailed:
                dead.add(candidate.process_key)

    def _go_on_without(self, candidate: Variant, crew: Crew, failed: VariantFailed) -> None:
        """A side that cannot be made leaves nothing behind: the others need no other processes."""
        harmless = failed.process_alive and failed.failure.kind == "cannot-build"
        if not harmless or failed.failure.variant != candidate.name or len(self._active) == 1:
            raise failed
        self._take_out(failed)
        crew.dismiss(candidate)

    def _warm_up(self, crew: Crew) -> None:
        for variant in crew.variants:
            warm_up(crew, variant, self._knowledge)
        for variant in crew.variants:
            if variant.name not in self._knowledge.metrics:
                measure_metrics(crew, variant, self._knowledge)
                measure_energy(crew, variant, self._knowledge, self._gpu)

    def _min_rounds(self, crew: Crew) -> int:
        round_ns = sum(
            self._knowledge.plans[one.name].iterations * self._knowledge.iteration_ns[one.name]
            for one in crew.variants
        )
        return MIN_ROUNDS if round_ns < LONG_ROUND_S * 1e9 else FEWER_ROUNDS

    def _keep(self, blocks: list[Block]) -> None:
        self._blocks.extend(blocks)
        self._recorder.add_blocks(self._workload, blocks)

    def _look(self) -> None:
        """Estimate each candidate that is still measured, and let the decided ones go."""
        last = self._pace.is_last_launch()
        for candidate in list(self._active):
            paired = pair_blocks(self._blocks, self._study.baseline.name, candidate.name)
            enough = paired.usable >= self._study.budget.min_launches
            planned = self._study.budget.precision_goal > 0 and enough
            if not (last or planned):
                continue
            looks = self._looks[candidate.name]
            fraction = 1.0 if last else self._pace.fraction
            looks.append(Look(launches=len(paired.medians), fraction=fraction))
            found = make_estimate(paired, looks, self._study.budget, self._spent)
            self._pace.learn(found, paired.pairs / max(1, paired.usable))
            spread = ""
            if found.interval is not None:
                spread = f" [{found.interval.low:.3f}, {found.interval.high:.3f}]"
            word = UNTRUSTED if paired.busy else found.verdict
            self._say("look", f"{candidate.name} {found.speedup:.3f}x{spread} {word}")
            if last or decided(found, self._study.budget):
                self._stop(candidate)

    def _stop(self, candidate: Variant) -> None:
        self._active.remove(candidate)
        self._spent_at_stop[candidate.name] = Spent(**asdict(self._spent))

    def _take_out(self, failed: VariantFailed) -> None:
        """A failed candidate leaves; without the baseline nothing can be compared.

        When a process crashed in which other candidates had run, it is not known whose fault that
        was. Nobody leaves then, and from the next launch on each candidate has its own process.
        """
        name = failed.failure.variant
        crashed = failed.failure.kind == "crashed" and not failed.process_alive
        if crashed and not self._apart and {c.name for c in self._active} & set(failed.suspects):
            self._apart = True
            self._spent.notes.append(_APART)
            self._say("warning", f"a shared process crashed while {name} ran: {_APART}")
            return
        self._say("warning", f"{name} failed: {failed.failure.message}")
        gone = [c for c in self._active if c.name == name]
        if not gone:
            gone = list(self._active)
        for candidate in gone:
            self._failures[candidate.name] = failed.failure
            self._failed_in[candidate.name] = self._number
            self._active.remove(candidate)

    def _placed(self, variant: Variant) -> Variant:
        """The variant in the process that it runs in now."""
        if not self._apart or variant == self._study.baseline:
            return variant
        environment = variant.environment
        own = replace(environment, name=f"{environment.name}-{variant.name}")
        return replace(variant, environment=own)

    def _record_targets(self, crew: Crew) -> None:
        """Keep what each process said of itself once, under the name that the study gives it."""
        for variant in crew.variants:
            own = next(one for one in self._study.variants if one.name == variant.name)
            if own.process_key not in self._recorded:
                self._recorded.add(own.process_key)
                hello = crew.hellos[variant.process_key]
                self._recorder.add_target("+".join(own.process_key), hello)

    def _record(
        self,
        number: int,
        crew: Crew,
        draw: LaunchDraw,
        timing: LaunchTiming,
    ) -> None:
        settings = self._study.settings
        self._recorder.add_launch(
            {
                "workload": self._workload.label,
                "launch": number,
                "variants": [variant.name for variant in crew.variants],
                "start_s": self._pace.last_start_s,
                "draw": asdict(draw),
                "timing": asdict(timing),
                "reseat": choose_reseat(settings.reseat, crew.variants, self._workload.device),
                "randomisation_off": {
                    "+".join(key): hello.get("randomisation_off")
                    for key, hello in crew.hellos.items()
                },
                "guards": guard_states(
                    [block.guard for block in self._blocks if block.launch == number],
                    self._watch.states | self._gpu_state(),
                ),
            }
        )

    def _gpu_state(self) -> dict[str, str]:
        return {} if self._workload.device == "cpu" else {"GPU": self._gpu.why_not}

    def _say(self, kind: EventKind, text: str) -> None:
        self._listener(
            Event(
                kind=kind,
                text=text,
                workload=self._workload.label,
                fraction=self._pace.fraction_of_session,
            )
        )


def _cuda_environment(study: Study) -> dict[str, str]:
    """The environment that chooses which card is `cuda:0`, as the variants' processes have it.

    Where variants differ in it, the choice is marked as one that names no card: a clock of another
    card is worse than none.
    """
    found = [
        {**os.environ, **dict(one.target.variables), **dict(one.environment.variables)}
        for one in study.variants
    ]
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    if len({tuple(one.get(name) for name in names) for one in found}) > 1:
        return {**found[0], "CUDA_VISIBLE_DEVICES": "different ones for different variants"}
    return found[0]

"""Time the rounds of a launch, and decide how long a launch measures and which one is the last.

In each round every variant gets one block, in a new random order, so that drift, other processes
and the cost of following another variant affect all of them alike. Data is relocated in memory from
time to time.

The time budget starts when the first launch is ready: its imports, compilation and checks are
preparation. Everything later counts, including process starts. After some launches, the split
follows Kalibera and Jones: longer launches where pairs are noisy, more launches where the
process-to-process variation is large.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchyard.bench.launch import Crew, threads_of
from torchyard.bench.preparation import Knowledge, verify_block
from torchyard.core.block import Block
from torchyard.core.comparison import Estimate
from torchyard.core.study import Budget, Reseat, Variant
from torchyard.machine.guards import block_check
from torchyard.machine.guards.block_check import UsualProbe
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.machine.guards.host_guards import Watch
from torchyard.stats.pairs import MIN_CLEAN_PAIRS
from torchyard.stats.stopping import pairs_per_launch

RESEAT_SHARE: Final = 0.06
"""Moving the data may cost this share of the measuring time."""
CHECK_SHARE: Final = 0.1
"""Comparing results of timed calls may cost this share of the measuring time, beyond the first round."""
MORE_ROUNDS: Final = 3
"""At most so many are added where disturbed ones left too few clean ones: a launch costs more to start."""


@dataclass(frozen=True, kw_only=True)
class LaunchTiming:
    """How a launch's measuring time was spent."""

    rounds: int
    seats: int
    wall_s: float
    timed_s: float
    moved_bytes: int
    held_bytes: int
    checked_calls: int = 0
    """Timed calls whose results were compared with eager code."""
    check_s: float = 0.0
    """What that took, outside of the blocks."""


def choose_reseat(method: Reseat, variants: Sequence[Variant], device: str) -> Reseat:
    """Fresh pages, unless the comparison is about where memory comes from, or not on the CPU."""
    if method != "auto":
        return method
    if device != "cpu":
        return "off"
    environments = {variant.environment for variant in variants}
    about_memory = any(environment.touches_allocator() for environment in environments)
    return "heap" if about_memory else "pages"


def enough_rounds(rounds: int, clean: int, min_rounds: int) -> bool:
    """Whether a launch may end: not before it can count, unless the machine is busy throughout."""
    if rounds < min_rounds:
        return False
    return clean >= MIN_CLEAN_PAIRS or rounds >= min_rounds + MORE_ROUNDS


def run_rounds(
    crew: Crew,
    knowledge: Knowledge,
    *,
    launch: int,
    seconds: float,
    min_rounds: int,
    chance: random.Random,
    gpu: GpuGuard,
    watch: Watch | None = None,
    usual: UsualProbe | None = None,
    on_round: Callable[[list[Block]], None],
) -> LaunchTiming:
    """Measure until the seconds are used; hands over the blocks of each finished round.

    Without a watch only the worker's own readings are judged. What is usual of the frequency probe is
    kept from launch to launch where one is given.
    """
    method = choose_reseat(crew.settings.reseat, crew.variants, crew.workload.device)
    started = time.monotonic()
    rounds = clean = seats = moved = held = 0
    timed_ns = 0
    reseat_s = 0.0
    every = 1
    checked_before, check_s_before = knowledge.checked_calls, knowledge.check_s
    usual = UsualProbe() if usual is None else usual
    usual.begin_launch()
    while time.monotonic() - started < seconds or not enough_rounds(rounds, clean, min_rounds):
        if method != "off" and rounds % every == 0:
            before = time.monotonic()
            moved, held = _reseat(crew, chance.randrange(2**31), method)
            reseat_s = time.monotonic() - before
            seats += 1
        order = list(crew.variants)
        chance.shuffle(order)
        before = time.monotonic()
        draw = chance.randrange(1, 2**31) if knowledge.is_checked else None
        blocks = [
            _block(
                crew, variant, knowledge, launch, rounds, position, seats, gpu, watch, usual, draw
            )
            for position, variant in enumerate(order)
        ]
        round_s = time.monotonic() - before
        every = max(1, round(reseat_s / (RESEAT_SHARE * max(round_s, 1e-6))))
        timed_ns += sum(block.wall_ns for block in blocks)
        rounds += 1
        clean += not any(block.dirty for block in blocks)
        on_round(blocks)
        spent_s = knowledge.check_s - check_s_before
        share = CHECK_SHARE * (time.monotonic() - started) / max(spent_s, 1e-6)
        if rounds == 1 or chance.random() < share:
            _verify(crew, knowledge, launch, rounds)
    return LaunchTiming(
        rounds=rounds,
        seats=seats,
        wall_s=time.monotonic() - started,
        timed_s=timed_ns / 1e9,
        moved_bytes=moved,
        held_bytes=held,
        checked_calls=knowledge.checked_calls - checked_before,
        check_s=knowledge.check_s - check_s_before,
    )


def _verify(crew: Crew, knowledge: Knowledge, launch: int, rounds: int) -> None:
    """Compare what was kept of this round's blocks."""
    for variant in crew.variants:
        if knowledge.is_comparable(variant):
            verify_block(crew, variant, knowledge, f"launch {launch + 1}, block {rounds}")


def _reseat(crew: Crew, seed: int, method: Reseat) -> tuple[int, int]:
    """One seed for all processes: the sides get the same arrangement in different pages."""
    moved = held = 0
    for variant in crew.one_variant_per_process():
        answer = crew.ask(
            variant,
            "reseat",
            phase="re-seating",
            limit_s=crew.settings.step_limit_s,
            seed=seed,
            method=method,
        )
        moved += int(answer["moved_bytes"])
        held += int(answer["held_bytes"])
    return moved, held


def _block(
    crew: Crew,
    variant: Variant,
    knowledge: Knowledge,
    launch: int,
    number: int,
    position: int,
    seat: int,
    gpu: GpuGuard,
    watch: Watch | None,
    usual: UsualProbe,
    draw: int | None,
) -> Block:
    plan = knowledge.plans[variant.name]
    expected_s = plan.iterations * knowledge.iteration_ns[variant.name] / 1e9
    if watch is not None:
        watch.begin()
    answer = crew.ask(
        variant,
        "block",
        phase="timing",
        limit_s=crew.settings.block_limit_s + 20 * expected_s,
        variant=variant.name,
        inner=plan.inner,
        samples=plan.samples,
        prime=plan.prime,
        settle=crew.several_processes,
        flush_l2=crew.settings.flush_l2,
        probe=crew.workload.device == "cpu",
        draw=draw,
        varied=knowledge.varied,
    )
    seen = watch.end() if watch is not None else {}
    reading = usual.beside(variant.name, block_check.reading_from(answer["readings"], seen))
    card = gpu.read()
    if card is not None:
        reading = replace(
            reading,
            sm_clock_mhz=card.sm_clock_mhz,
            throttle_reasons=card.throttle_reasons,
            gpu_temperature_c=card.temperature_c,
            gpu_power_w=card.power_w,
            other_gpu_processes=card.other_processes,
        )
    samples = tuple(float(sample) for sample in answer["samples_ns"])
    return Block(
        launch=launch,
        round=number,
        position=position,
        variant=variant.name,
        seat=seat,
        inner=int(answer["inner"]),
        samples_ns=samples,
        started_ns=int(answer["started_ns"]),
        wall_ns=int(answer["wall_ns"]),
        guard=reading,
        dirty=block_check.judge(
            reading,
            wall_ns=int(answer["wall_ns"]),
            samples=len(samples),
            threads=threads_of(variant, crew.settings),
        ),
    )


FIRST_GUESS_LAUNCHES: Final = 8
SHORTEST_S: Final = 1.0
CUT_SHARE: Final = 0.5
"""Another launch is begun only if at least this share of it fits into what is left."""


class Pace:
    """Keeps the time of one session."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._began: float | None = None
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._starts_s: list[float] = []
        self._round_s = 0.0
        self._done = 0
        self._wanted_s: float | None = None
        self._seconds = 0.0

    @property
    def elapsed_s(self) -> float:
        """Measuring time used; waiting for others' turns is not."""
        if self._began is None:
            return 0.0
        return time.monotonic() - self._began - (self._waited_s - self._waited_before_s)

    @property
    def fraction(self) -> float:
        """Share of the time allowed, short of 1, which the last look alone may claim."""
        return min(0.999, max(1e-6, self.elapsed_s / self._budget.time_s))

    @property
    def fraction_of_session(self) -> float:
        """For progress: nothing before the first launch is ready."""
        return 0.0 if self._began is None else min(1.0, self.elapsed_s / self._budget.time_s)

    @property
    def last_start_s(self) -> float:
        """How long the latest launch took to be ready."""
        return self._starts_s[-1]

    def launch_ready(self, start_s: float, *, waited_s: float = 0.0) -> None:
        """The processes are up and warm; the clock runs from the first time this happens.

        `waited_s` is all that the session has waited for others until now.
        """
        self._starts_s.append(start_s)
        self._waited_s = waited_s
        if self._began is None:
            self._began = time.monotonic()
            self._waited_before_s = waited_s

    def launch_done(self, timing: LaunchTiming) -> None:
        """A launch ended."""
        self._done += 1
        self._round_s = timing.wall_s / max(1, timing.rounds)

    def learn(self, found: Estimate, pairs_in_launch: float) -> None:
        """Choose the length of the coming launches from the spreads seen so far."""
        if (
            found.launch_sd is None
            or found.pair_sd is None
            or self._done < self._budget.min_launches
        ):
            return
        pairs = pairs_per_launch(
            pair_sd=found.pair_sd,
            launch_sd=found.launch_sd,
            launch_cost_s=self._start_guess_s(),
            pair_cost_s=max(self._round_s, 1e-3),
            pairs_so_far=max(1, round(pairs_in_launch)),
        )
        self._wanted_s = pairs * self._round_s

    def seconds_for_rounds(self) -> float:
        """How long the launch that is now ready shall measure."""
        budget_s, start_s = self._budget.time_s, self._start_guess_s()
        launches = min(self._budget.max_launches, FIRST_GUESS_LAUNCHES)
        share_s = (budget_s - (launches - 1) * start_s) / launches
        wanted_s = self._wanted_s if self._wanted_s is not None else share_s
        if self._budget.launch_s is not None:
            wanted_s = self._budget.launch_s
        still = max(1, min(self._budget.min_launches, self._budget.max_launches) - self._done)
        left_s = budget_s - self.elapsed_s
        at_most_s = (left_s - (still - 1) * start_s) / still
        self._seconds = max(SHORTEST_S, min(wanted_s, at_most_s))
        if self._budget.max_launches == 1:
            self._seconds = budget_s
        return self._seconds

    def is_last_launch(self) -> bool:
        """Whether the launch that just ended was the last one that fits."""
        if self._done >= self._budget.max_launches:
            return True
        next_s = self._start_guess_s() + max(self._seconds, SHORTEST_S)
        left_s = self._budget.time_s - self.elapsed_s
        if self._done < self._budget.min_launches:
            return left_s < -self._budget.time_s
        return left_s < CUT_SHARE * next_s

    def _start_guess_s(self) -> float:
        """Later launches are the ones to go by: the first one compiled and checked as well."""
        later = self._starts_s[1:]
        if later:
            return sum(later) / len(later)
        return 0.3 * self._starts_s[0] if self._starts_s else 0.0

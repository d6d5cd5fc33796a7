"""Time the rounds of a launch.

In each round every variant has one block, in a new random order, so that drift, other processes
and the effects of the preceding variant are distributed equally. Data is relocated in memory from
time to time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchyard.bench.launch import LaunchProcesses, threads_of
from torchyard.bench.preparation import PreparationState, verify_block
from torchyard.core.block import Block, GuardReading
from torchyard.core.study import SCRIPT_SUITE, RelocationMethod, Variant
from torchyard.machine.guards import block_check
from torchyard.machine.guards.block_check import ProbeBaseline
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.machine.guards.host_guards import HostGuards
from torchyard.stats.pairs import MIN_CLEAN_PAIRS

RELOCATION_SHARE: Final = 0.06
"""Largest share of the measuring time spent on relocating data."""
CHECK_SHARE: Final = 0.1
"""Expected share of the measuring time spent on checking results of timed calls, after the first round."""
MAX_EXTRA_ROUNDS: Final = 3
"""Rounds added if too few are clean; starting another launch costs more."""


@dataclass(frozen=True, kw_only=True)
class LaunchTiming:
    """Measuring time of a launch, by activity."""

    rounds: int
    seats: int
    wall_s: float
    timed_s: float
    moved_bytes: int
    held_bytes: int
    checked_calls: int = 0
    """Number of timed calls whose results were compared with eager code."""
    check_s: float = 0.0
    """Time of these comparisons, outside of the blocks."""


def choose_reseat(
    method: RelocationMethod, variants: Sequence[Variant], device: str
) -> RelocationMethod:
    """Resolve `auto`: fresh pages, but `heap` if allocators are compared and `off` on other devices."""
    if method != "auto":
        return method
    if device.partition(":")[0] not in {"cpu", "cuda"}:
        return "off"
    environments = {variant.environment for variant in variants}
    about_memory = any(environment.touches_allocator() for environment in environments)
    return "heap" if about_memory else "pages"


def enough_rounds(rounds: int, clean: int, min_rounds: int) -> bool:
    """Whether a launch may end: with enough clean rounds, or after the extra rounds."""
    if rounds < min_rounds:
        return False
    return clean >= MIN_CLEAN_PAIRS or rounds >= min_rounds + MAX_EXTRA_ROUNDS


def run_rounds(
    processes: LaunchProcesses,
    prepared: PreparationState,
    *,
    launch: int,
    seconds: float,
    min_rounds: int,
    chance: random.Random,
    gpu: GpuGuard,
    watch: HostGuards | None = None,
    usual: ProbeBaseline | None = None,
    device_users: Callable[[], int] = lambda: 0,
    on_round: Callable[[list[Block]], None],
) -> LaunchTiming:
    """Measure for at least `seconds`; pass the blocks of each finished round to `on_round`.

    Without `watch`, only the worker's own readings are checked. `usual` has the typical value of
    the frequency probe in earlier launches. `device_users` counts other processes of a sweep that use
    the device, around each block.
    """
    method = choose_reseat(processes.settings.reseat, processes.variants, processes.workload.device)
    started = time.monotonic()
    rounds = clean = placements = moved_bytes = held_bytes = 0
    timed_ns = 0
    relocation_s = last_check_s = 0.0
    relocate_every = 1
    checked_before, check_s_before = prepared.checked_calls, prepared.check_s
    usual = ProbeBaseline() if usual is None else usual
    usual.begin_launch()
    timer = _BlockTimer(processes, prepared, launch, gpu, watch, usual, device_users)
    while time.monotonic() - started < seconds or not enough_rounds(rounds, clean, min_rounds):
        if method != "off" and rounds % relocate_every == 0:
            before = time.monotonic()
            moved_bytes, held_bytes = _relocate(processes, chance.randrange(2**31), method)
            relocation_s = time.monotonic() - before
            placements += 1
        order = list(processes.variants)
        chance.shuffle(order)
        before = time.monotonic()
        draw = chance.randrange(1, 2**31) if prepared.is_checked else None
        blocks = [
            timer.time(variant, number=rounds, position=position, placement=placements, draw=draw)
            for position, variant in enumerate(order)
        ]
        round_s = time.monotonic() - before
        relocate_every = max(1, round(relocation_s / (RELOCATION_SHARE * max(round_s, 1e-6))))
        timed_ns += sum(block.wall_ns for block in blocks)
        rounds += 1
        clean += not any(block.dirty for block in blocks)
        on_round(blocks)
        if rounds == 1 or chance.random() < CHECK_SHARE * round_s / max(last_check_s, 1e-6):
            spent_s = prepared.check_s
            _verify(processes, prepared, launch, rounds)
            last_check_s = prepared.check_s - spent_s
    return LaunchTiming(
        rounds=rounds,
        seats=placements,
        wall_s=time.monotonic() - started,
        timed_s=timed_ns / 1e9,
        moved_bytes=moved_bytes,
        held_bytes=held_bytes,
        checked_calls=prepared.checked_calls - checked_before,
        check_s=prepared.check_s - check_s_before,
    )


def _verify(
    processes: LaunchProcesses, prepared: PreparationState, launch: int, rounds: int
) -> None:
    """Check the results kept in this round's blocks."""
    for variant in processes.variants:
        if variant.name in prepared.comparable:
            verify_block(processes, variant, prepared, f"launch {launch + 1}, block {rounds}")


def _relocate(processes: LaunchProcesses, seed: int, method: RelocationMethod) -> tuple[int, int]:
    """Relocate data in all processes with one seed: the same arrangement in different pages."""
    moved_bytes = held_bytes = 0
    for variant in processes.one_variant_per_process():
        answer = processes.ask(
            variant,
            "reseat",
            phase="relocation",
            seed=seed,
            method=method,
        )
        moved_bytes += int(answer["moved_bytes"])
        held_bytes += int(answer["held_bytes"])
    return moved_bytes, held_bytes


def _block_limit_s(processes: LaunchProcesses) -> float:
    """Return the time limit of a block; a script may have to be started again in it."""
    settings = processes.settings
    is_script = processes.workload.suite == SCRIPT_SUITE
    return settings.step_limit_s if is_script else settings.block_limit_s


@dataclass(frozen=True)
class _BlockTimer:
    """Times the blocks of one launch."""

    processes: LaunchProcesses
    prepared: PreparationState
    launch: int
    gpu: GpuGuard
    watch: HostGuards | None
    usual: ProbeBaseline
    device_users: Callable[[], int]

    def time(
        self, variant: Variant, *, number: int, position: int, placement: int, draw: int | None
    ) -> Block:
        """Time the block of a variant in one round, with the readings of the guards."""
        processes = self.processes
        plan = self.prepared.plans[variant.name]
        expected_s = plan.iterations * self.prepared.iteration_ns[variant.name] / 1e9
        users = self.device_users()
        if self.watch is not None:
            self.watch.begin()
        answer = processes.ask(
            variant,
            "block",
            phase="timing",
            limit_s=_block_limit_s(processes) + 20 * expected_s,
            variant=variant.name,
            inner=plan.inner,
            samples=plan.samples,
            prime=plan.prime,
            settle=processes.several_processes,
            flush_l2=processes.settings.flush_l2,
            probe=processes.workload.device == "cpu",
            draw=draw,
            varied=self.prepared.varied,
        )
        host_readings = self.watch.end() if self.watch is not None else {}
        reading = block_check.reading_from(answer["readings"], host_readings)
        reading = self._with_gpu(self.usual.beside(variant.name, reading), users)
        samples = tuple(float(sample) for sample in answer["samples_ns"])
        wall_ns = int(answer["wall_ns"])
        ranks = processes.workload.ranks
        threads = threads_of(variant, processes.settings, processes.workload.ranks_per_node)
        return Block(
            launch=self.launch,
            round=number,
            position=position,
            variant=variant.name,
            seat=placement,
            inner=int(answer["inner"]),
            samples_ns=samples,
            started_ns=int(answer["started_ns"]),
            wall_ns=wall_ns,
            guard=reading,
            dirty=block_check.judge(
                reading, wall_ns=wall_ns, samples=len(samples), threads=ranks * threads
            ),
        )

    def _with_gpu(self, reading: GuardReading, users: int) -> GuardReading:
        """Add the readings of the GPU; `users` counts other processes that used it before the block."""
        gpu_reading = self.gpu.read()
        if gpu_reading is not None:
            reading = replace(
                reading,
                sm_clock_mhz=gpu_reading.sm_clock_mhz,
                throttle_reasons=gpu_reading.throttle_reasons,
                gpu_temperature_c=gpu_reading.temperature_c,
                gpu_power_w=gpu_reading.power_w,
                other_gpu_processes=gpu_reading.other_processes,
            )
        if users := max(users, self.device_users()):
            others = reading.other_gpu_processes or 0
            reading = replace(reading, other_gpu_processes=max(users, others))
        return reading

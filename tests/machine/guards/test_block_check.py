"""Which blocks are clean: each threshold from both sides."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.block import GuardReading
from torchyard.machine.guards import block_check
from torchyard.machine.guards.block_check import REASONS

WALL_NS = 100_000_000


def reasons_of(reading: GuardReading, *, samples: int = 20, threads: int = 1) -> tuple[str, ...]:
    return block_check.judge(reading, wall_ns=WALL_NS, samples=samples, threads=threads)


def share(limit: float, times: float) -> int:
    return int(limit * times * WALL_NS)


@pytest.mark.parametrize(
    ("samples", "limit"),
    [(20, block_check.WAIT_SHARE_LIMIT), (2, block_check.WAIT_SHARE_LIMIT_FEW_SAMPLES)],
)
def test_waiting_for_a_core(samples: int, limit: float) -> None:
    below = GuardReading(run_queue_wait_ns=share(limit, 0.9))
    above = GuardReading(run_queue_wait_ns=share(limit, 1.1))
    assert reasons_of(below, samples=samples) == ()
    assert reasons_of(above, samples=samples) == ("waited for a core",)


def test_steal_and_paging() -> None:
    limit = block_check.STEAL_SHARE_LIMIT
    assert reasons_of(GuardReading(steal_certain_ns=share(limit, 0.9))) == ()
    assert reasons_of(GuardReading(steal_certain_ns=share(limit, 1.1))) == ("stolen by the host",)
    assert reasons_of(GuardReading(steal_certain_ns=share(limit, 1.1)), threads=2) == ()
    assert reasons_of(GuardReading(major_faults=0)) == ()
    assert reasons_of(GuardReading(major_faults=1)) == ("read pages from disk",)


@pytest.mark.parametrize("wall_ns", [10**7, 5 * 10**7, 10**8, 10**9])
def test_one_tick_of_steal_is_rounding_however_short_the_block(wall_ns: int) -> None:
    tick = 10_000_000
    rounding = GuardReading(steal_ns=tick, steal_certain_ns=0)
    assert block_check.judge(rounding, wall_ns=wall_ns, samples=20, threads=1) == ()
    much = GuardReading(steal_ns=8 * tick, steal_certain_ns=7 * tick)
    dirty = block_check.judge(much, wall_ns=wall_ns, samples=20, threads=1)
    assert dirty == ("stolen by the host",)


def test_switches_and_cpu_time_stand_in_where_waiting_cannot_be_read() -> None:
    many = int(block_check.SWITCHES_PER_SECOND_LIMIT * WALL_NS / 1e9) + 1
    assert reasons_of(GuardReading(involuntary_switches=many)) == ("preempted",)
    assert reasons_of(GuardReading(involuntary_switches=1)) == ()
    assert reasons_of(GuardReading(involuntary_switches=many), threads=2) == ()
    assert reasons_of(GuardReading(involuntary_switches=2 * many), threads=2) == ("preempted",)
    half = GuardReading(cpu_ns=WALL_NS // 2)
    assert reasons_of(half) == ("off the core",)
    assert reasons_of(half, threads=2) == ()
    assert reasons_of(GuardReading(run_queue_wait_ns=0, cpu_ns=WALL_NS // 2)) == ()
    assert reasons_of(GuardReading(run_queue_wait_ns=0, involuntary_switches=many)) == ()


def test_a_slowed_gpu_is_dirty_and_a_power_cap_is_not() -> None:
    held = GuardReading(throttle_reasons=("power cap", "hardware thermal"))
    assert reasons_of(held) == ("GPU clock held: hardware thermal",)


def test_swapping_counts_by_its_rate_while_it_was_observed() -> None:
    limit = block_check.SWAPPED_PAGES_PER_SECOND_LIMIT
    second = 10**9
    calm = GuardReading(swapped_pages=int(limit * 0.9), watched_ns=second)
    assert reasons_of(calm) == ()
    assert reasons_of(replace(calm, swapped_pages=int(limit * 1.1))) == ("machine swapped",)
    assert reasons_of(replace(calm, watched_ns=second // 2)) == ("machine swapped",)
    assert reasons_of(replace(calm, watched_ns=None)) == ("machine swapped",)


def test_memory_pressure_counts_by_its_share_of_the_time_it_may_come_from() -> None:
    """The kernel adds up every two seconds, so a block sees what happened before it, too."""
    limit, period = block_check.MEMORY_STALL_SHARE_LIMIT, block_check.MEMORY_STALL_PERIOD_NS
    assert reasons_of(GuardReading(memory_stall_ns=share(limit, 3))) == ()
    assert reasons_of(GuardReading(memory_stall_ns=int(limit * 0.9 * period))) == ()
    much = GuardReading(memory_stall_ns=int(limit * 1.1 * period))
    assert reasons_of(much) == ("memory was short",)
    assert reasons_of(replace(much, watched_ns=2 * period)) == ()


@pytest.mark.parametrize(
    ("reading", "dirty"),
    [
        (GuardReading(throttle_events=0, cooling_state=0), False),
        (GuardReading(throttle_events=1), True),
        (GuardReading(throttle_events=0, cooling_state=2), True),
        (GuardReading(cooling_state=-1), False),  # a device at rest can say so
        (GuardReading(cpu_temperature_c=99.0), False),  # recorded, not judged
    ],
)
def test_throttling_counts_and_heat_does_not(reading: GuardReading, dirty: bool) -> None:
    assert reasons_of(reading) == (("processor throttled",) if dirty else ())


@pytest.mark.parametrize(
    ("before", "after", "dirty"),
    [
        (1000, 1000, False),
        (900, 900, False),  # faster than usual
        (1050, 1050, False),
        (1051, 1000, True),
        (1000, 1051, True),
        (None, 1051, True),
        (None, None, False),
    ],
)
def test_a_core_that_takes_longer_than_usual(
    before: int | None, after: int | None, dirty: bool
) -> None:
    reading = GuardReading(probe_before_ns=before, probe_after_ns=after, probe_limit_ns=1050)
    assert reasons_of(reading) == (("core slowed down",) if dirty else ())
    assert reasons_of(replace(reading, probe_limit_ns=None)) == ()


def test_nothing_known_and_no_time_at_all_are_clean() -> None:
    assert reasons_of(GuardReading()) == ()
    reading = GuardReading(steal_ns=0, run_queue_wait_ns=0, swapped_pages=0, memory_stall_ns=0)
    assert block_check.judge(reading, wall_ns=0, samples=1, threads=1) == ()


def test_readings_of_worker_and_controller_become_one_record() -> None:
    reading = block_check.reading_from(
        {"cpu_ns": 5, "steal_ns": None, "unknown": 7},
        {"swapped_pages": 2, "cpu_temperature_c": 40.5},
    )
    assert (reading.cpu_ns, reading.steal_ns, reading.run_queue_wait_ns) == (5, None, None)
    assert (reading.swapped_pages, reading.cpu_temperature_c) == (2, 40.5)


COUNTS = st.one_of(st.none(), st.integers(0, 10**12))
READINGS = st.builds(
    GuardReading,
    **{
        name: COUNTS
        for name in (field.name for field in fields(GuardReading))
        if name not in {"throttle_reasons", "cpu_temperature_c", "sm_clock_mhz"}
        and not name.startswith("gpu")
    },
)
GROWING = (
    "run_queue_wait_ns",
    "steal_ns",
    "major_faults",
    "swapped_pages",
    "memory_stall_ns",
    "throttle_events",
    "cooling_state",
    "probe_before_ns",
    "probe_after_ns",
)


def with_number(reading: GuardReading, name: str, number: int | None) -> GuardReading:
    changes: dict[str, Any] = {name: number}
    return replace(reading, **changes)


@given(READINGS, st.integers(0, 10**12), st.integers(1, 1000), st.integers(1, 256))
def test_every_reading_gets_known_reasons_once(
    reading: GuardReading, wall_ns: int, samples: int, threads: int
) -> None:
    judgement = block_check.judge(reading, wall_ns=wall_ns, samples=samples, threads=threads)
    assert len(set(judgement)) == len(judgement)
    assert set(judgement) <= set(REASONS)


@given(READINGS, st.sampled_from(GROWING), st.integers(0, 10**12))
def test_more_of_a_disturbance_never_makes_a_block_cleaner(
    reading: GuardReading, name: str, more: int
) -> None:
    known = getattr(reading, name)
    worse = with_number(reading, name, (known or 0) + more)
    if known is None:  # waiting that can be read takes the place of what stood in for it
        reading = with_number(reading, name, 0)
    assert set(reasons_of(reading)) <= set(reasons_of(worse))


@given(READINGS)
def test_unavailable_readings_never_make_a_block_dirty(reading: GuardReading) -> None:
    stand_ins = {"preempted", "off the core"}
    for name in GROWING:
        blind = with_number(reading, name, None)
        assert set(reasons_of(blind)) - stand_ins <= set(reasons_of(reading))

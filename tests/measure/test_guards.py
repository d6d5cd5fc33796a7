"""Which blocks are believed: each threshold from both sides."""

from __future__ import annotations

import pytest

from torchyard.core.block import GuardReading
from torchyard.measure import guards

WALL_NS = 100_000_000


def judge(reading: GuardReading, *, samples: int = 20, threads: int = 1) -> tuple[str, ...]:
    return guards.judge(reading, wall_ns=WALL_NS, samples=samples, threads=threads)


def share(limit: float, times: float) -> int:
    return int(limit * times * WALL_NS)


@pytest.mark.parametrize(
    ("samples", "limit"),
    [(20, guards.WAIT_SHARE_LIMIT), (2, guards.WAIT_SHARE_LIMIT_FEW_SAMPLES)],
)
def test_waiting_for_a_core(samples: int, limit: float) -> None:
    below = GuardReading(run_queue_wait_ns=share(limit, 0.9))
    above = GuardReading(run_queue_wait_ns=share(limit, 1.1))
    assert judge(below, samples=samples) == ()
    assert judge(above, samples=samples) == ("waited for a core",)


def test_steal_and_paging() -> None:
    limit = guards.STEAL_SHARE_LIMIT
    assert judge(GuardReading(steal_ns=share(limit, 0.9))) == ()
    assert judge(GuardReading(steal_ns=share(limit, 1.1))) == ("stolen by the host",)
    assert judge(GuardReading(major_faults=0)) == ()
    assert judge(GuardReading(major_faults=1)) == ("read pages from disk",)


def test_switches_and_cpu_time_stand_in_where_waiting_cannot_be_read() -> None:
    many = int(guards.SWITCHES_PER_SECOND_LIMIT * WALL_NS / 1e9) + 1
    assert judge(GuardReading(involuntary_switches=many)) == ("preempted",)
    assert judge(GuardReading(involuntary_switches=1)) == ()
    half = GuardReading(cpu_ns=WALL_NS // 2)
    assert judge(half) == ("off the core",)
    assert judge(half, threads=2) == ()
    assert judge(GuardReading(run_queue_wait_ns=0, cpu_ns=WALL_NS // 2)) == ()
    assert judge(GuardReading(run_queue_wait_ns=0, involuntary_switches=many)) == ()


def test_a_slowed_gpu_is_dirty_and_a_power_cap_is_not() -> None:
    held = GuardReading(throttle_reasons=("power cap", "hardware thermal"))
    assert judge(held) == ("GPU clock held: hardware thermal",)


def test_nothing_known_and_no_time_at_all_are_clean() -> None:
    assert judge(GuardReading()) == ()
    reading = GuardReading(steal_ns=0, run_queue_wait_ns=0)
    assert guards.judge(reading, wall_ns=0, samples=1, threads=1) == ()


def test_the_workers_readings_become_a_record() -> None:
    found = guards.reading_from({"cpu_ns": 5, "steal_ns": None, "unknown": 7})
    assert (found.cpu_ns, found.steal_ns, found.run_queue_wait_ns) == (5, None, None)

"""Detection of a slowed core: with a steady clock, a varying clock, and a lasting drop."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.block import GuardReading
from torchyard.machine.guards import block_check
from torchyard.machine.guards.block_check import FEWEST, SMALLEST_LIMIT, ProbeBaseline

SLOWED = ("core slowed down",)


def block(
    usual: ProbeBaseline, before: int | None, after: int | None = None, *, variant: str = "a"
) -> tuple[str, ...]:
    after = before if after is None else after
    reading = GuardReading(probe_before_ns=before, probe_after_ns=after)
    return block_check.judge(usual.beside(variant, reading), wall_ns=10**8, samples=20, threads=1)


def learn(usual: ProbeBaseline, probes: Iterable[int], variant: str = "a") -> list[bool]:
    return [bool(block(usual, probe, variant=variant)) for probe in probes]


def test_on_a_steady_clock_a_small_fall_counts_before_or_after() -> None:
    usual = ProbeBaseline()
    assert not any(learn(usual, [10_000, 10_020, 9_990] * 5))
    assert block(usual, 10_400) == ()
    assert block(usual, 10_600, 10_000) == SLOWED
    assert block(usual, 10_000, 10_600) == SLOWED
    assert block(usual, 9_000) == ()
    assert block(usual, 10_000) == ()


def test_the_probe_is_only_recorded_until_there_are_enough_blocks() -> None:
    usual = ProbeBaseline()
    assert not any(learn(usual, [10_000] * (FEWEST - 1)))
    reading = usual.beside("a", GuardReading(probe_before_ns=20_000, probe_after_ns=20_000))
    assert (reading.probe_usual_ns, reading.probe_limit_ns) == (10_000, None)
    reading = usual.beside("a", GuardReading(probe_before_ns=20_000, probe_after_ns=20_000))
    assert reading.probe_limit_ns == round(10_000 * (1 + SMALLEST_LIMIT))


def test_a_clock_that_always_changes_dirties_few_blocks_and_a_deep_fall_is_still_seen() -> None:
    """As on a shared machine: 8 % up and down from one moment to the next."""
    chance = random.Random(6)
    usual = ProbeBaseline()
    found = []
    for _ in range(400):
        before, after = (round(13_000 * chance.lognormvariate(0, 0.05)) for _ in range(2))
        found.append(bool(block(usual, before, after)))
    assert sum(found) / len(found) < 0.02
    assert block(usual, 20_000) == SLOWED


def test_a_variant_that_lowers_the_clock_is_compared_with_its_own_blocks() -> None:
    usual = ProbeBaseline()
    assert not any(learn(usual, [10_000] * 12))
    assert not any(learn(usual, [12_000] * 12, variant="wide"))
    assert block(usual, 12_000) == SLOWED
    assert block(usual, 12_000, variant="wide") == ()


def test_a_permanently_lower_clock_becomes_the_reference() -> None:
    usual = ProbeBaseline()
    usual_times = learn(usual, [10_000] * 12 + [12_000] * 20)
    assert usual_times == [False] * 12 + [True] * 12 + [False] * 8


def test_a_launch_starts_a_new_reference_and_keeps_the_variation() -> None:
    usual = ProbeBaseline()
    learn(usual, [10_000] * 12)
    usual.begin_launch()
    assert block(usual, 12_000) == ()
    assert block(usual, 12_000, 13_000) == SLOWED


def test_without_a_probe_there_is_no_reference() -> None:
    assert ProbeBaseline().beside("a", GuardReading(cpu_ns=1)) == GuardReading(cpu_ns=1)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_the_level_is_one_that_was_seen_and_half_were_not_slower(probes: list[int]) -> None:
    usual = ProbeBaseline()
    for number, probe in enumerate(probes, start=1):
        usual_ns = usual.beside("a", GuardReading(probe_before_ns=probe)).probe_usual_ns
        seen = probes[:number]
        assert usual_ns in seen
        assert 2 * sum(one <= usual_ns for one in seen) >= number
        assert 2 * sum(one < usual_ns for one in seen) <= number


@given(st.lists(st.integers(1000, 10**6), min_size=FEWEST + 1, max_size=60), st.integers(2, 1000))
def test_the_verdict_does_not_depend_on_the_speed_of_the_machine(
    probes: list[int], factor: int
) -> None:
    one, other = ProbeBaseline(), ProbeBaseline()
    for probe in probes:
        slow = one.beside("a", GuardReading(probe_before_ns=probe * 1000))
        fast = other.beside("a", GuardReading(probe_before_ns=probe * 1000 * factor))
        if slow.probe_limit_ns is not None:
            assert fast.probe_limit_ns == pytest.approx(slow.probe_limit_ns * factor, rel=1e-5)

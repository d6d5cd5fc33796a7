"""Simulated noise is attributed to its cause and to no other; drift is found."""

from __future__ import annotations

import itertools
import math
from statistics import median

import numpy as np
import pytest

from tests.audit.synthetic_blocks import FIRST_NS, MEASURE_S, START_S, make_blocks, synthetic_audit
from torchyard.audit.audit_files import changes_between, differences
from torchyard.audit.model import Audit, Drift
from torchyard.audit.noise_audit import MOST_POINTS
from torchyard.audit.variation import _depth, find_drift
from torchyard.core.comparison import Verdict
from torchyard.core.records import decode, encode
from torchyard.machine.load_monitor import LoadSample, NoiseSource


def test_a_clean_machine() -> None:
    audit = synthetic_audit(make_blocks(1, pair_sd=0.002, process_sd=0.002))
    assert audit.complaints == ()
    assert audit.dirty_blocks == 0
    assert audit.within.sd == pytest.approx(0.002, rel=0.2)
    assert audit.between.sd == pytest.approx(0.002, rel=0.5)
    assert audit.drift is not None
    assert not audit.drift.shown
    five = audit.in_minutes(5)
    assert five is not None
    assert five.launches == int(300 / (START_S + MEASURE_S))
    assert five.difference is not None
    assert five.difference < 0.002
    assert audit.verdict in {Verdict.SAME, Verdict.UNDECIDED}
    assert not audit.false_alarm


def test_process_to_process_variation_is_between_and_not_within_launches() -> None:
    sds = [synthetic_audit(make_blocks(seed, pair_sd=0.002, process_sd=0.05)) for seed in range(20)]
    assert median(audit.between.sd or 0 for audit in sds) == pytest.approx(0.05, rel=0.15)
    assert median(audit.within.sd or 0 for audit in sds) == pytest.approx(0.002, rel=0.15)
    one = sds[0]
    assert one.between.interval is not None
    assert one.between.interval.low > 0.01
    assert one.resolvable[0].difference is not None
    assert one.resolvable[0].difference > 0.02


def test_noisy_pairs_barely_affect_the_variation_between_launches() -> None:
    audit = synthetic_audit(make_blocks(3, pair_sd=0.06))
    assert audit.within.sd == pytest.approx(0.06, rel=0.25)
    assert audit.between.sd is not None
    # Medians of nine pairs still vary by a third to a half of one pair.
    assert audit.between.sd < 0.04


def test_drift_is_found_and_cancelled_by_pairs() -> None:
    audit = synthetic_audit(make_blocks(4, pair_sd=0.003, process_sd=0.003, drift_per_minute=0.08))
    assert audit.drift is not None
    assert audit.drift.shown
    assert audit.drift.per_minute == pytest.approx(0.08, rel=0.2)
    assert audit.drift.explains > 0.8
    assert audit.between.sd is not None
    assert audit.unpaired.sd is not None
    assert audit.unpaired.sd > 5 * audit.between.sd


def test_a_difference_between_identical_variants_is_a_false_alarm() -> None:
    audit = synthetic_audit(make_blocks(5, pair_sd=0.002, process_sd=0.002, difference=-0.05))
    assert audit.verdict is Verdict.FASTER
    assert audit.false_alarm
    assert audit.ratio == pytest.approx(1.05, abs=0.01)


def test_dirty_blocks_are_counted_by_reason_and_left_out() -> None:
    audit = synthetic_audit(make_blocks(6, pair_sd=0.002, dirty_rounds={4}, dirty_cost=0.5))
    assert audit.dirty_blocks == 26
    assert audit.dirty == (("waited for a core", 26),)
    assert audit.within.sd == pytest.approx(0.002, rel=0.3)
    assert audit.time_ns == pytest.approx(1e6, rel=0.01)
    assert all(launch.pairs == 8 for launch in audit.launches)
    assert sum(point.dirty for point in audit.series) == 26


def test_mostly_dirty_blocks_are_too_noisy_for_any_estimate() -> None:
    audit = synthetic_audit(make_blocks(7, pair_sd=0.001, dirty_rounds=set(range(9)) - {4}))
    assert audit.dirty_share == pytest.approx(8 / 9)
    assert audit.complaints == ("89% of the blocks were disturbed",)


def test_a_machine_that_resolves_nothing_is_too_noisy() -> None:
    audit = synthetic_audit(make_blocks(8, pair_sd=0.5, process_sd=0.8))
    assert audit.complaints == ("5 minutes cannot resolve a difference of 10%",)


def test_one_launch_reports_what_it_cannot_estimate() -> None:
    audit = synthetic_audit(make_blocks(9, launches=1, pair_sd=0.01))
    assert audit.between.sd is None
    assert audit.drift is None
    assert "too few launches" in audit.complaints[0]
    assert audit.within.sd is not None
    assert audit.within.interval is None


def test_two_launches_that_agree_are_not_called_good() -> None:
    audit = synthetic_audit(make_blocks(9, launches=2, pair_sd=0.0001))
    five = audit.in_minutes(5)
    assert five is not None
    assert five.difference is not None
    assert five.difference < 0.001
    assert audit.complaints == ("too few launches to estimate the resolvable difference",)


def test_no_block_at_all() -> None:
    audit = synthetic_audit([])
    assert audit.launches == ()
    assert audit.time_ns is None
    assert audit.ratio is None
    assert audit.resolvable == ()
    assert audit.complaints


def test_an_unfinished_launch_counts_with_what_it_has() -> None:
    blocks = make_blocks(10, launches=3, pair_sd=0.01)[:-11]
    audit = synthetic_audit(blocks)
    assert [launch.pairs for launch in audit.launches][:2] == [9, 9]
    assert audit.blocks == len(blocks)


def test_the_series_is_thinned_and_says_so() -> None:
    audit = synthetic_audit(make_blocks(11, launches=80, pair_sd=0.01))
    assert audit.blocks == 1440
    assert audit.series_every == 3
    assert len(audit.series) == 480 <= MOST_POINTS
    assert audit.series[1].at_s > audit.series[0].at_s == 0.0


def test_the_assumptions_name_what_was_measured() -> None:
    audit = synthetic_audit(make_blocks(12, pair_sd=0.01))
    text = " ".join(audit.assumptions)
    assert "4.5 s each" in text
    assert "9 pairs" in text
    assert "2 threads" in text
    assert "--launches 400" in text


def test_an_audit_survives_json() -> None:
    audit = synthetic_audit(make_blocks(13, pair_sd=0.01, process_sd=0.02))
    assert decode(Audit, encode(audit), where="audit") == audit


def beside(launch: int, amount: float, who: NoiseSource) -> LoadSample:
    """Return what a load monitor recorded during that launch."""
    began = FIRST_NS + int(launch * (START_S + MEASURE_S) * 1e9)
    return LoadSample(
        started_ns=began, ended_ns=began + int(MEASURE_S * 1e9), amounts={who: amount, QUIET: 0.001}
    )


QUIET = NoiseSource("process", "sleeper")
COMPILER = NoiseSource("process", "cc1plus")


def test_the_disturbing_process_is_named_with_its_share() -> None:
    blocks = make_blocks(14, pair_sd=0.01)
    samples = tuple(beside(launch, 0.93 if launch < 5 else 0.0, COMPILER) for launch in range(13))
    (disturbance,) = synthetic_audit(blocks, samples=samples).disturbances
    assert (disturbance.kind, disturbance.what, disturbance.unit) == ("process", "cc1plus", "cores")
    assert disturbance.share_of_blocks == pytest.approx(5 / 13)
    assert disturbance.amount == pytest.approx(0.93 * 5 / 13, rel=0.02)
    assert disturbance.advice


def test_slowdown_of_blocks_during_the_disturbance() -> None:
    """It is there in the second half of every launch, and costs 20 %."""
    blocks = make_blocks(15, pair_sd=0.01, process_sd=0.1, dirty_rounds=range(5, 9), dirty_cost=0.2)
    half = int(MEASURE_S * 5 / 9 * 1e9)
    samples = []
    for launch in range(13):
        began = FIRST_NS + int(launch * (START_S + MEASURE_S) * 1e9)
        middle, end = began + half, began + int(MEASURE_S * 1e9)
        samples += [
            LoadSample(started_ns=began, ended_ns=middle, amounts={}),
            LoadSample(started_ns=middle, ended_ns=end, amounts={COMPILER: 0.9}),
        ]
    (disturbance,) = synthetic_audit(blocks, samples=tuple(samples)).disturbances
    assert disturbance.slower == pytest.approx(math.expm1(0.2), abs=0.02)
    assert disturbance.share_of_blocks == pytest.approx(4 / 9)


def test_the_worst_comes_first_whatever_its_unit() -> None:
    blocks = make_blocks(16)
    amounts = {
        NoiseSource("interrupt", "eth0"): 3000.0,
        NoiseSource("process", "cc1plus"): 1.8,
        NoiseSource("steal", "the host"): 0.2,
    }
    sample = LoadSample(started_ns=FIRST_NS, ended_ns=FIRST_NS + int(100e9), amounts=amounts)
    disturbances = synthetic_audit(blocks, samples=(sample,)).disturbances
    assert [one.what for one in disturbances] == ["cc1plus", "the host", "eth0"]
    assert [one.slower for one in disturbances] == [None, None, None]


def test_quieter_is_shown_only_when_significant() -> None:
    noisy = synthetic_audit(make_blocks(17, pair_sd=0.03, process_sd=0.06))
    quiet = synthetic_audit(make_blocks(18, pair_sd=0.003, process_sd=0.006))
    again = synthetic_audit(make_blocks(19, pair_sd=0.03, process_sd=0.06))
    assert [one.verdict for one in changes_between([noisy], [quiet])] == ["quieter"] * 3
    assert [one.verdict for one in changes_between([quiet], [noisy])] == ["noisier"] * 3
    assert {one.verdict for one in changes_between([noisy], [again])} == {"not told apart"}


def test_several_audits_of_one_state_are_pooled() -> None:
    halves = [synthetic_audit(make_blocks(seed, launches=6, process_sd=0.05)) for seed in (20, 21)]
    whole = synthetic_audit(make_blocks(22, launches=12, process_sd=0.01, pair_sd=0.001))
    change = changes_between(halves, [whole])[1]
    alone = changes_between(halves[:1], [whole])[1]
    assert change.interval is not None
    assert alone.interval is not None
    width, width_alone = (math.log(i.high / i.low) for i in (change.interval, alone.interval))
    assert width < width_alone


def test_differences_other_than_noise_are_reported() -> None:
    machine = (("governor", "powersave"), ("load", "1.0"), ("kernel", "6.1"))
    changed = (("governor", "performance"), ("load", "2.0"), ("kernel", "6.1"))
    one = synthetic_audit(make_blocks(23), machine=machine, cores=(2, 3))
    other = synthetic_audit(make_blocks(24), machine=changed, threads=4)
    assert differences(one, other) == (
        "threads: 2 before, 4 after",
        "cores: 2,3 before, not pinned after",
        "governor: powersave before, performance after",
    )
    assert differences(one, one) == ()


LAUNCHES, BLOCKS = 12, 18


def series(
    seed: int, *, slope: float = 0.0, process_sd: float = 0.02, block_sd: float = 0.005
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Minutes and levels of launches, and of their blocks: 12 launches in a minute."""
    rng = np.random.default_rng(seed)
    times = np.arange(LAUNCHES) / LAUNCHES
    levels = slope * times + rng.normal(0.0, process_sd, LAUNCHES)
    block_times = np.repeat(times, BLOCKS)
    block_levels = np.repeat(levels, BLOCKS) + rng.normal(0.0, block_sd, LAUNCHES * BLOCKS)
    return times.tolist(), levels.tolist(), block_times.tolist(), block_levels.tolist()


def drift_of(data: tuple[list[float], list[float], list[float], list[float]]) -> Drift:
    drift = find_drift(data[0], data[1], block_minutes=data[2], block_levels=data[3])
    assert drift is not None
    return drift


def test_a_simulated_drift_is_found() -> None:
    drift = drift_of(series(1, slope=0.10, process_sd=0.005))
    assert drift.shown
    assert drift.interval is not None
    assert drift.interval.covers(0.10)
    assert drift.per_minute == pytest.approx(0.10, abs=0.02)
    assert drift.explains > 0.7


def test_differences_between_processes_are_not_drift() -> None:
    """At 216 blocks a line through blocks would be sure of itself; launches are not."""
    shown = sum(drift_of(series(seed)).shown for seed in range(300))
    assert shown / 300 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 300)


def test_interval_holds_with_heavy_tails() -> None:
    hits = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        times = np.arange(8) / 8
        levels = 0.05 * times + 0.01 * rng.standard_t(1.5, 8)
        drift = find_drift(times.tolist(), levels.tolist(), block_minutes=[], block_levels=[])
        assert drift is not None
        assert drift.interval is not None
        hits += drift.interval.covers(0.05)
    assert hits / 300 >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def test_one_outlier_is_not_drift() -> None:
    data = series(5, process_sd=0.002)
    data[1][-1] += 0.5
    assert abs(drift_of(data).per_minute) < 0.02


def test_too_few_launches() -> None:
    assert find_drift([0.0, 1.0], [0.0, 0.1], block_minutes=[], block_levels=[]) is None
    four = find_drift([0, 1, 2, 3], [0, 1, 2, 3], block_minutes=[], block_levels=[])
    assert four is not None
    assert four.per_minute == 1.0
    assert four.interval is None
    assert not four.shown
    assert find_drift([1.0] * 4, [0.0] * 4, block_minutes=[], block_levels=[]) is None


def test_steady_blocks_explain_nothing() -> None:
    drift = find_drift([0, 1, 2], [0, 0, 0], block_minutes=[0, 1, 2], block_levels=[0, 0, 0])
    assert drift is not None
    assert drift.explains == 0.0


def test_many_launches_are_thinned() -> None:
    times = [number / 10 for number in range(1000)]
    drift = find_drift(times, [0.03 * t for t in times], block_minutes=[], block_levels=[])
    assert drift is not None
    assert drift.per_minute == pytest.approx(0.03)


@pytest.mark.parametrize("launches", [4, 5, 6, 7])
def test_depth_against_all_orders(launches: int) -> None:
    """Counted: in how many orders of the launches fewer than `depth` pairs are inverted."""
    orders = list(itertools.permutations(range(launches)))
    inversions = [
        sum(one > other for one, other in itertools.combinations(order, 2)) for order in orders
    ]
    depth = _depth(launches)
    assert sum(count < depth for count in inversions) / len(orders) <= 0.025
    assert sum(count <= depth for count in inversions) / len(orders) > 0.025

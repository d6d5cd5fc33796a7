"""Spreads and their ratios on simulated machines whose true spread is known."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.stats.simulated_launches import IID, NOISES, SPIKES, Noise, draw_launches
from torchyard.audit.model import Spread
from torchyard.audit.variation import (
    MINUTES,
    change_between,
    change_within,
    deviation,
    earlier_spread,
    resolvable_in,
    spread_between,
    spread_within,
)
from torchyard.core.comparison import Interval
from torchyard.results.model import LaunchVariance
from torchyard.stats.distributions import two_sided_critical
from torchyard.stats.launches import SD_FLOOR

TRIALS = 300
# The chance of so few hits when 95 of 100 are promised is below one in ten thousand.
FEWEST_HITS = 0.95 - 4 * math.sqrt(0.95 * 0.05 / TRIALS)


def deviations(noise: Noise, seed: int, *, launches: int, pairs: int) -> list[list[float]]:
    """Of each launch, for every trial."""
    rng = np.random.default_rng(seed)
    drawn = draw_launches(noise, rng, launches=TRIALS * launches, pairs=pairs)
    found = np.array([deviation(row) for row in drawn]).reshape(TRIALS, launches)
    return [row.tolist() for row in found]


def medians(
    noise: Noise, seed: int, *, launches: int, trials: int = TRIALS
) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    drawn = draw_launches(noise, rng, launches=trials * launches, pairs=9)
    return list(np.median(drawn, axis=1).reshape(trials, launches))


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=12))
def test_deviation_is_the_mean_difference_of_all_pairs(values: list[float]) -> None:
    apart = [abs(one - other) for one, other in combinations(values, 2)]
    expected = math.sqrt(math.pi) / 2 * sum(apart) / len(apart)
    assert deviation(values) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [3, 6, 9, 20])
def test_deviation_is_unbiased_for_any_count(count: int) -> None:
    drawn = np.random.default_rng(7).normal(5.0, 0.02, (4000, count))
    found = [deviation(row.tolist()) or 0.0 for row in drawn]
    assert float(np.mean(found)) == pytest.approx(0.02, rel=0.02)


def test_one_value_has_no_deviation() -> None:
    assert deviation([0.3]) is None
    assert deviation([]) is None


def test_nothing_measured_has_no_spread() -> None:
    assert spread_within([]).sd is None
    assert spread_between([0.01]).sd is None
    assert change_within("within", [], [0.01, 0.02]).verdict == "unknown"


def test_two_launches_have_a_spread_and_no_interval() -> None:
    spread = spread_between([0.01, 0.03])
    assert spread.sd == pytest.approx(math.sqrt(2) * 0.01)
    assert spread.interval is None
    assert change_between("between", [0.01, 0.03], [0.01, 0.02]).verdict == "unknown"


def test_identical_launches_do_not_divide_by_zero() -> None:
    assert spread_between([0.0, 0.0, 0.0]).sd == SD_FLOOR
    change = change_between("between", [0.0] * 4, [0.01, -0.01, 0.02, 0.0])
    assert change.ratio is not None
    assert math.isfinite(change.ratio)
    assert change_within("within", [0.0] * 3, [0.0] * 3).ratio == 1.0


@pytest.mark.parametrize("values", [[0.3, 0.1, 0.7], [1.0, 1.01, 0.99, 1.05, 1.0]])
def test_jackknife_leaves_out_one_launch_at_a_time(values: list[float]) -> None:
    count = len(values)
    whole = math.log(float(np.var(values, ddof=1)))
    left_out = [
        math.log(float(np.var(values[:place] + values[place + 1 :], ddof=1)))
        for place in range(count)
    ]
    pseudo = [count * whole - (count - 1) * one for one in left_out]
    error = float(np.std(pseudo, ddof=1)) / math.sqrt(count) / 2
    interval = spread_between(values).interval
    assert interval is not None
    width = two_sided_critical(0.05, count - 1) * error
    assert math.log(interval.high / interval.low) / 2 == pytest.approx(width)


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
@pytest.mark.parametrize("launches", [5, pytest.param(13, marks=pytest.mark.slow)])
def test_interval_of_the_ratio_between_launches_holds(noise: Noise, launches: int) -> None:
    """Half the spread on one side: the interval must hold 0.5 as often as it says."""
    hits = false_alarms = none = 0
    both = (medians(noise, seed, launches=launches) for seed in (1, 2))
    for before, again in zip(*both, strict=True):
        interval = change_between("between", before, again / 2).interval
        none += interval is None
        hits += interval is None or interval.covers(0.5)
        verdict = change_between("between", before, again).verdict
        false_alarms += verdict in ("quieter", "noisier")
    assert none / TRIALS <= (0.2 if launches == 5 else 0.01)
    assert hits / TRIALS >= FEWEST_HITS
    assert false_alarms / TRIALS <= 1 - FEWEST_HITS


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_interval_of_the_ratio_within_launches_holds(noise: Noise) -> None:
    hits = 0
    both = (deviations(noise, seed, launches=8, pairs=9) for seed in (1, 2))
    for before, after in zip(*both, strict=True):
        change = change_within("within", before, [value / 2 for value in after])
        assert change.interval is not None
        hits += change.interval.covers(0.5)
    assert hits / TRIALS >= FEWEST_HITS


def test_more_pairs_in_a_launch_do_not_look_like_another_spread() -> None:
    few = deviations(IID, 1, launches=13, pairs=6)
    many = deviations(IID, 2, launches=13, pairs=12)
    alarms = sum(
        change_within("within", before, after).verdict != "not told apart"
        for before, after in zip(few, many, strict=True)
    )
    assert alarms / TRIALS <= 1 - FEWEST_HITS


@pytest.mark.parametrize(
    "noise", [noise for noise in NOISES if noise is not SPIKES], ids=lambda noise: noise.name
)
def test_interval_of_one_spread_between_launches_holds(noise: Noise) -> None:
    """Not asked of rare spikes: launches that were not drawn cannot be in an interval."""
    truth = float(np.std(np.concatenate(medians(noise, 1, launches=13, trials=1000))))
    hits = 0
    for drawn in medians(noise, 2, launches=13):
        interval = spread_between(drawn).interval
        assert interval is not None
        hits += interval.covers(truth)
    assert hits / TRIALS >= 0.88


def test_a_large_change_and_a_tenfold_noise_are_found() -> None:
    (before,) = medians(IID, 3, launches=13, trials=1)
    after = medians(IID, 4, launches=13, trials=1)[0] * 10
    change = change_between("between", before, after)
    assert change.verdict == "noisier"
    assert change_between("between", after, before).verdict == "quieter"
    assert change.ratio == pytest.approx((change.after or 0) / (change.before or 1))


def test_typical_launch_is_the_geometric_mean() -> None:
    spread = spread_within([0.01, 0.04, 0.02])
    assert spread.sd == pytest.approx(0.02)
    assert spread.interval is not None
    assert spread.interval.covers(0.02)


def test_an_uninformative_interval_is_omitted() -> None:
    assert spread_within([0.001, 1.0]).interval is None
    assert spread_within([0.001, 1.0]).sd == pytest.approx(math.sqrt(0.001))


def variance_of(launches: int, pairs: int, *, tau: float, pair_sd: float) -> LaunchVariance:
    """Pooled variances of comparisons whose launches differ by `tau`."""
    rng = np.random.default_rng(7)
    drawn = rng.normal(0.0, tau, (TRIALS, launches, 1))
    drawn = drawn + rng.normal(0.0, pair_sd, (TRIALS, launches, pairs))
    observed = float(np.mean(np.var(np.median(drawn, axis=2), axis=1, ddof=1)))
    return LaunchVariance(
        machine="here",
        device="cpu",
        suite="kernels",
        comparisons=TRIALS,
        launches=TRIALS * launches,
        observed=observed,
        pair_mean=pair_sd**2 / pairs,
    )


def test_noise_of_pairs_is_not_a_spread_between_launches() -> None:
    spread = earlier_spread(variance_of(5, 9, tau=0.02, pair_sd=0.05))
    assert spread.launch_sd == pytest.approx(0.02, rel=0.1)
    assert spread.observed_sd > 1.3 * spread.launch_sd
    # Student's quantiles of 9 degrees of freedom for 95 % and for 80 % power.
    assert spread.detectable == pytest.approx(
        (2.262 + 0.883) * spread.observed_sd / 10**0.5, rel=1e-3
    )


def test_launches_that_differ_less_than_their_pairs_explain() -> None:
    variance = LaunchVariance(
        machine="here",
        device="cpu",
        suite="kernels",
        comparisons=1,
        launches=3,
        observed=0.0,
        pair_mean=1e-4,
    )
    spread = earlier_spread(variance)
    assert (spread.launch_sd, spread.observed_sd) == (0.0, SD_FLOOR)


NOISY = Spread(sd=0.03, interval=Interval(low=0.02, high=0.06))


def test_longer_comparisons_resolve_less() -> None:
    differences = [resolvable_in(minutes, NOISY, launch_s=4.4).difference for minutes in MINUTES]
    sizes = [size for size in differences if size is not None]
    assert len(sizes) == len(MINUTES)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[-1] == pytest.approx(math.sqrt(30), rel=0.12)


def test_the_number_of_launches_is_what_fits() -> None:
    assert resolvable_in(1, NOISY, launch_s=4.5).launches == 13
    assert resolvable_in(5, NOISY, launch_s=100.0).launches == 3


def test_the_interval_comes_from_the_spread() -> None:
    resolvable = resolvable_in(5, NOISY, launch_s=4.0)
    assert resolvable.difference is not None
    assert resolvable.interval is not None
    assert resolvable.interval.low == pytest.approx(resolvable.difference * 2 / 3)
    assert resolvable.interval.high == pytest.approx(resolvable.difference * 2)


def test_no_resolvable_effect_without_two_launches_or_a_spread() -> None:
    assert resolvable_in(1, NOISY, launch_s=40.0).difference is None
    assert resolvable_in(1, Spread(), launch_s=1.0).difference is None
    assert resolvable_in(5, Spread(sd=0.01), launch_s=4.0).interval is None
    with pytest.raises(ValueError, match="must be positive"):
        resolvable_in(1, NOISY, launch_s=0.0)


def test_the_resolvable_effect_holds_in_simulation() -> None:
    """A difference of the promised size is found by the t test in about 80 % of comparisons."""
    resolvable = resolvable_in(1, NOISY, launch_s=4.5)
    assert resolvable.difference is not None
    rng = np.random.default_rng(11)
    drawn = rng.normal(resolvable.difference, 0.03, (4000, resolvable.launches))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(resolvable.launches))
    power = float(np.mean(t > two_sided_critical(0.05, resolvable.launches - 1)))
    assert 0.78 <= power <= 0.86

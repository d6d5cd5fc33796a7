"""Variation of a machine: spread, drift, and the smallest detectable difference.

The launch is the independent unit. Within a launch, the spread comes from Gini's mean difference
(Yitzhaki 2003), whose expectation does not depend on the number of values and which a single value
moves less than a variance. The logarithms of the spreads of all launches have a plain t interval.
The spread between launches is one number from all of them; its uncertainty comes from a jackknife
of the log variance (Miller 1968), because the usual F interval is wrong as soon as launches are not
normally distributed.

Drift is a line through one level per launch, since blocks of one process share its layout: the
median of all slopes between two launches (Theil 1950, Sen 1968), with an interval from Kendall's
exact distribution, which holds for any noise as long as launches are independent.

The smallest detectable difference follows from the spread between launches and the cost of a
launch, both as measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.audit.model import (
    DETECTING_LAUNCHES,
    AuditChange,
    Change,
    Drift,
    EarlierSpread,
    Resolvable,
    Spread,
)
from torchyard.core.comparison import Interval
from torchyard.results.model import LaunchVariance
from torchyard.stats.distributions import two_sided_critical
from torchyard.stats.launches import SD_FLOOR, median_variance
from torchyard.stats.stopping import minimum_detectable

_FEWEST_VALUES: Final = 2
_FEWEST_LAUNCHES: Final = 3
"""With two launches, the jackknife variance without one of them does not exist."""
_ALPHA: Final = 0.05
_WIDEST: Final = math.log(100.0)
"""An interval wider than a factor of 100 in either direction is not reported."""
# E|x - y| of two independent normal values is 2 / sqrt(pi) standard deviations.
_GINI_TO_SD: Final = math.sqrt(math.pi) / 2.0

Values = Sequence[float] | NDArray[np.float64]
_Log = tuple[float, float, float]
"""Log of a spread, its standard error, and the degrees of freedom of the error."""


def deviation(values: Values) -> float | None:
    """Return the standard deviation from Gini's mean difference; None for fewer than two values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = ordered.size
    if count < _FEWEST_VALUES:
        return None
    weights = 2.0 * np.arange(1, count + 1) - count - 1.0
    mean_difference = 2.0 * float(weights @ ordered) / (count * (count - 1))
    return _GINI_TO_SD * mean_difference


def spread_within(deviations: Values) -> Spread:
    """Return the spread of the typical launch: geometric mean of the launches' deviations."""
    values = _usable(deviations)
    if not values.size:
        return Spread()
    log = _log_within(values)
    centre = float(np.mean(np.log(values)))
    return Spread(sd=math.exp(centre), interval=_interval(log))


def spread_between(effects: Values) -> Spread:
    """Return the standard deviation of launch effects.

    The interval covers the kinds of launches that occurred, not rare kinds that did not.
    """
    values = np.asarray(effects, dtype=np.float64)
    if values.size < _FEWEST_VALUES:
        return Spread()
    sd = max(float(np.std(values, ddof=1)), SD_FLOOR)
    return Spread(sd=sd, interval=_interval(_log_between(values)))


def change_within(name: str, before: Values, after: Values) -> AuditChange:
    """Compare the variation within launches; takes the launches' deviations."""
    spreads = (spread_within(before), spread_within(after))
    return _change(name, spreads, (_log_within(_usable(before)), _log_within(_usable(after))))


def change_between(name: str, before: Values, after: Values) -> AuditChange:
    """Compare the variation between launches; takes launch effects."""
    spreads = (spread_between(before), spread_between(after))
    logs = [_log_between(np.asarray(values, dtype=np.float64)) for values in (before, after)]
    return _change(name, spreads, (logs[0], logs[1]))


def _usable(deviations: Values) -> NDArray[np.float64]:
    return np.maximum(np.asarray(deviations, dtype=np.float64), SD_FLOOR)


def _log_within(values: NDArray[np.float64]) -> _Log | None:
    if values.size < _FEWEST_VALUES:
        return None
    logs = np.log(values)
    error = float(np.std(logs, ddof=1)) / math.sqrt(values.size)
    return float(np.mean(logs)), error, values.size - 1.0


def _log_between(values: NDArray[np.float64]) -> _Log | None:
    """Return the log standard deviation (half the log variance) with its jackknife error."""
    count = values.size
    if count < _FEWEST_LAUNCHES:
        return None
    deviations = values - float(np.mean(values))
    squares = float(deviations @ deviations)
    # Sums of squares of all values but one, around their own mean.
    others = np.maximum(squares - deviations**2 * count / (count - 1), 0.0)
    whole = math.log(max(squares / (count - 1), SD_FLOOR**2))
    left_out = np.log(np.maximum(others / (count - 2), SD_FLOOR**2))
    pseudo = count * whole - (count - 1) * left_out
    error = float(np.std(pseudo, ddof=1)) / math.sqrt(count)
    return whole / 2.0, error / 2.0, count - 1.0


def _interval(log: _Log | None) -> Interval | None:
    if log is None:
        return None
    centre, error, df = log
    return _ends(centre, two_sided_critical(_ALPHA, df) * error)


def _change(
    name: str, spreads: tuple[Spread, Spread], logs: tuple[_Log | None, _Log | None]
) -> AuditChange:
    before, after = (spread.sd for spread in spreads)
    log_before, log_after = logs
    if before is None or after is None:
        return AuditChange(
            name=name, before=before, after=after, ratio=None, interval=None, verdict="unknown"
        )
    interval = None
    if log_before is not None and log_after is not None:
        centre = log_after[0] - log_before[0]
        parts = (log_before[1] ** 2, log_after[1] ** 2)
        df = _welch(parts, (log_before[2], log_after[2]))
        width = two_sided_critical(_ALPHA, df) * math.sqrt(sum(parts))
        interval = _ends(centre, width)
    return AuditChange(
        name=name,
        before=before,
        after=after,
        ratio=after / before,
        interval=interval,
        verdict=_verdict(interval),
    )


def _welch(parts: tuple[float, float], df: tuple[float, float]) -> float:
    total = sum(parts)
    if total <= 0.0:
        return min(df)
    return total**2 / sum(part**2 / count for part, count in zip(parts, df, strict=True))


def _ends(centre: float, width: float) -> Interval | None:
    if not width <= _WIDEST:
        return None
    return Interval(
        low=math.exp(centre - width), high=math.exp(centre + width), confidence=1.0 - _ALPHA
    )


def _verdict(interval: Interval | None) -> Change:
    if interval is None:
        return "unknown"
    if interval.high < 1.0:
        return "quieter"
    return "noisier" if interval.low > 1.0 else "not told apart"


_FEWEST_LAUNCHES_FOR_DRIFT: Final = 3
_MOST_LAUNCHES: Final = 200
"""With more launches, every n-th is used, to limit the cost of the exact distribution."""


def find_drift(
    minutes: Sequence[float],
    levels: Sequence[float],
    *,
    block_minutes: Sequence[float],
    block_levels: Sequence[float],
) -> Drift | None:
    """Return the slope of log times over launches, and the share of the variance it explains.

    None with fewer than three launches, or if no time passed between them.
    """
    step = max(1, -(-len(minutes) // _MOST_LAUNCHES))
    times = np.asarray(minutes, dtype=np.float64)[::step]
    values = np.asarray(levels, dtype=np.float64)[::step]
    if times.size < _FEWEST_LAUNCHES_FOR_DRIFT:
        return None
    slopes = _slopes(times, values)
    if not slopes.size:
        return None
    slope = float(np.median(slopes))
    return Drift(
        per_minute=slope,
        interval=_slope_interval(slopes, times.size),
        explains=_explained(
            slope, np.asarray(block_minutes, dtype=float), np.asarray(block_levels, dtype=float)
        ),
    )


def _slopes(times: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    first, second = np.triu_indices(times.size, k=1)
    gaps = times[second] - times[first]
    is_distinct = gaps != 0.0
    slopes: NDArray[np.float64] = np.sort(
        (values[second] - values[first])[is_distinct] / gaps[is_distinct]
    )
    return slopes


def _slope_interval(slopes: NDArray[np.float64], launches: int) -> Interval | None:
    """Return the d-th smallest and largest slope, for the largest d that keeps the confidence."""
    if slopes.size != launches * (launches - 1) // 2:
        return None  # launches at the same time: the distribution below does not apply
    depth = _depth(launches)
    if depth == 0:
        return None
    return Interval(
        low=float(slopes[depth - 1]), high=float(slopes[-depth]), confidence=1.0 - _ALPHA
    )


@lru_cache(maxsize=256)
def _depth(launches: int) -> int:
    """Return how many slopes to cut at each end: P(fewer inversions) <= alpha / 2."""
    chances = np.ones(1)
    for length in range(2, launches + 1):
        chances = np.convolve(chances, np.full(length, 1.0 / length))
    below = np.cumsum(chances)
    return int(np.searchsorted(below, _ALPHA / 2.0, side="right"))


def _explained(slope: float, minutes: NDArray[np.float64], levels: NDArray[np.float64]) -> float:
    if levels.size < _FEWEST_LAUNCHES_FOR_DRIFT:
        return 0.0
    whole = float(np.var(levels))
    if whole <= 0.0:
        return 0.0
    return max(0.0, 1.0 - float(np.var(levels - slope * minutes)) / whole)


MINUTES: Final = tuple(range(1, 31))
_FEWEST_LAUNCHES_TO_RESOLVE: Final = 2


def resolvable_in(minutes: float, between: Spread, *, launch_s: float) -> Resolvable:
    """Return what a comparison resolves whose launches take `launch_s` seconds, start included."""
    if not launch_s > 0.0:
        raise ValueError(f"launch_s must be positive: {launch_s=}")
    launches = int(60.0 * minutes / launch_s)
    if between.sd is None or launches < _FEWEST_LAUNCHES_TO_RESOLVE:
        return Resolvable(minutes=minutes, launches=launches, difference=None)
    smallest = minimum_detectable(between.sd, launches, alpha=_ALPHA)
    interval = None
    if smallest is not None and between.interval is not None:
        interval = Interval(
            low=smallest * between.interval.low / between.sd,
            high=smallest * between.interval.high / between.sd,
            confidence=between.interval.confidence,
        )
    return Resolvable(minutes=minutes, launches=launches, difference=smallest, interval=interval)


def earlier_spread(variance: LaunchVariance) -> EarlierSpread:
    """Return the spread between launches of earlier comparisons, and what it allows to detect."""
    beyond_pairs = max(0.0, variance.observed - median_variance(variance.pair_mean))
    observed_sd = max(math.sqrt(variance.observed), SD_FLOOR)
    return EarlierSpread(
        machine=variance.machine,
        device=variance.device,
        suite=variance.suite,
        comparisons=variance.comparisons,
        launches=variance.launches,
        launch_sd=math.sqrt(beyond_pairs),
        observed_sd=observed_sd,
        detectable=minimum_detectable(observed_sd, DETECTING_LAUNCHES, alpha=_ALPHA),
    )

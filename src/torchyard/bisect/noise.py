"""Noise of the runs of revisions: outliers, variances, and whether two revisions differ by their own runs.

Independent of change points: results do not depend on a hypothesis. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from torchyard.stats.distributions import two_counts_p, two_sided_critical
from torchyard.stats.launches import SD_FLOOR
from torchyard.stats.pairs import ONE_SIDED_P

MIN_ROUNDS: Final = 3
"""Rounds with a revision before it can bound the culprit: one slow run must not decide."""
_SHRINKAGE: Final = 4.0
"""Degrees of freedom with which estimated variances are shrunk."""
SINGLE_LEVEL: Final = 0.01
SEVERAL_LEVEL: Final = 0.002
"""Levels of the t test between the revisions before and after a change. There are many pairs of changes to choose
the most probable one from."""
_OUTLIER: Final = 6.0
_FEW: Final = 10.0
"""Distance of outliers, in robust standard deviations of many values, and how it grows for few."""
_MOST_OUTLIERS: Final = 0.15
_MANY: Final = 30
"""Share of runs that can be outliers, and the number of runs from which on it is checked."""
_POLISH_PASSES: Final = 3
MAD_TO_SD: Final = 1.4826
ENOUGH_DEGREES: Final = 8
"""Degrees of freedom from which estimated variances are used."""
SMALLEST: Final = 1e-12
"""Sums of squares below this are rounding errors."""

Round = Mapping[int, float]
"""Logarithm of the time of each revision that was measured, by its index in the range."""


def without_outliers(rounds: Sequence[Round]) -> list[Round]:
    """Leave out runs that something else on the machine disturbed, and rounds with a single run left.

    Residuals of a median polish (Tukey 1977) of rounds and revisions, in units of their robust
    standard deviation. Revisions have levels of their own here, so this does not depend on a
    hypothesis. The only run of a revision has no residual: it is left out if it is far outside of both
    ends, so that the search measures the revision again. All runs are kept if those of one end are left out
    significantly more often, or if many are: they are part of the time then, for example one of two levels.
    """
    values: dict[int, list[float]] = {revision: [] for one in rounds for revision in one}
    good = min(values)
    for one in rounds:
        for revision, value in one.items():
            if good in one:
                values[revision].append(value - one[good])
    # The differences to good are near the solution; from zeros, the polish converges slowly.
    levels = {revision: median(several or (0.0,)) for revision, several in values.items()}
    effects = [0.0] * len(rounds)
    for _ in range(_POLISH_PASSES):
        effects = [
            median(value - levels[revision] for revision, value in one.items()) for one in rounds
        ]
        values = {revision: [] for revision in levels}
        for one, effect in zip(rounds, effects, strict=True):
            for revision, value in one.items():
                values[revision].append(value - effect)
        levels = {revision: median(several) for revision, several in values.items()}
    residuals = [
        {revision: abs(value - effect - levels[revision]) for revision, value in one.items()}
        for one, effect in zip(rounds, effects, strict=True)
    ]
    count = sum(len(one) for one in rounds)
    degrees = max(1, count - len(rounds) - len(levels) + 1)
    # The median run of each round has no residual, whatever the noise.
    positive = [value for one in residuals for value in one.values() if value > SMALLEST]
    limit = outlier_limit(degrees) * max(MAD_TO_SD * median(positive or (0.0,)), SD_FLOOR)
    limits = dict.fromkeys(levels, limit)
    # Revisions between the ends may be noisier: their runs are not outliers then.
    between = [k for k in levels if k not in {min(levels), max(levels)}]
    between_degrees = sum(len(values[k]) - 1 for k in between)
    positive = [of[k] for of in residuals for k in between if of.get(k, 0.0) > SMALLEST]
    if between_degrees and positive:
        limit = max(limit, outlier_limit(between_degrees) * MAD_TO_SD * median(positive))
        limits.update(dict.fromkeys(between, limit))
    ends = sorted((levels[min(levels)], levels[max(levels)]))
    unconfirmed = {
        revision
        for revision, several in values.items()
        if len(several) == 1 and not ends[0] - limit <= several[0] <= ends[1] + limit
    }
    usual_rounds: list[Round] = [
        {
            revision: value
            for revision, value in one.items()
            if of[revision] <= limits[revision] and revision not in unconfirmed
        }
        for one, of in zip(rounds, residuals, strict=True)
    ]
    usual_rounds = [one for one in usual_rounds if len(one) > 1]
    disturbed = [
        sum(of.get(revision, 0.0) > limits[revision] for of in residuals)
        for revision in (min(levels), max(levels))
    ]
    one_sided = two_counts_p(*disturbed) < ONE_SIDED_P
    both = all(
        any(revision in one for one in usual_rounds) for revision in (min(levels), max(levels))
    )
    many = count >= _MANY and sum(map(len, usual_rounds)) < (1.0 - _MOST_OUTLIERS) * count
    return usual_rounds if both and not one_sided and not many else list(rounds)


def outlier_limit(degrees: int) -> float:
    """Return the distance of outliers in robust standard deviations, which few values underestimate.

    Less than 0.5 % of samples of 4 or more normal values contain one beyond it.
    """
    return _OUTLIER * (1.0 + _FEW / degrees)


def inverse_variances(rounds: Sequence[Round], last: int) -> dict[int, float]:
    """Return the inverse variances of single runs of each revision, relative to each other.

    Empty if there are too few rounds. Variances of good, bad and the revisions between them follow from those of
    their differences in the same round (Grubbs 1948); a revision noisier than others between the ends has a larger
    one. All are shrunk.
    """
    complete = [one for one in rounds if 0 in one and last in one]
    middles: dict[int, list[Round]] = {}
    for one in complete:
        for k in one:
            if 0 < k < last:
                middles.setdefault(k, []).append(one)

    def spread(low: float, high: float) -> dict[int, float]:
        """Return the sum of squares of each revision against a weighted mean of good and bad."""
        return {
            k: _within([[one[k] - low * one[0] - high * one[last] for one in several]])[0]
            for k, several in middles.items()
        }

    degrees = sum(map(len, middles.values())) - len(middles)
    if degrees < ENOUGH_DEGREES:
        return {}
    ends, ends_degrees = _within([[one[last] - one[0] for one in complete]])
    both = ends / ends_degrees
    from_good = math.fsum(spread(1.0, 0.0).values()) / degrees
    from_bad = math.fsum(spread(0.0, 1.0).values()) / degrees
    mean = max((both + from_good + from_bad) / 6.0, SD_FLOOR**2)

    def shrunk(variance: float, degrees: float) -> float:
        return (degrees * max(variance, 0.0) + _SHRINKAGE * mean) / (degrees + _SHRINKAGE)

    good = shrunk((both + from_good - from_bad) / 2.0, degrees)
    bad = shrunk((both + from_bad - from_good) / 2.0, degrees)
    middle = shrunk((from_good + from_bad - both) / 2.0, degrees)
    spreads = spread(0.5, 0.5)
    pooled = max(math.fsum(spreads.values()) / degrees, SD_FLOOR**2)
    variances = {0: good, last: bad}
    for k, own in spreads.items():
        count = len(middles[k]) - 1
        ratio = (own / pooled + _SHRINKAGE) / (count + _SHRINKAGE)
        variances[k] = middle * max(1.0, ratio)
    return {k: mean / variance for k, variance in variances.items()}


def differ(rounds: Sequence[Round], low: int, high: int, last: int, level: float) -> bool:
    """Whether the rounds with two revisions show by themselves that their levels differ.

    The posterior has one standard deviation for all revisions. If those between the ends are noisier than the
    ends, or have two levels, a few runs of them decide too early. Here, each run is compared with the ends in the
    same round, and the variance is that of both revisions, or the pooled one if it is larger (t test).
    """
    if (low, high) == (0, last):
        return True  # as the ordinary verdict found
    references = [0] if low == 0 else [last] if high == last else [0, last]
    values: dict[int, list[float]] = {}
    for one in rounds:
        if 0 in one and last in one:
            reference = math.fsum(one[k] for k in references) / len(references)
            for k, value in one.items():
                if 0 < k < last:
                    values.setdefault(k, []).append(value - reference)
    sides = [values.get(k, []) for k in (low, high) if 0 < k < last]
    if min(map(len, sides)) < MIN_ROUNDS:
        return False
    own, own_degrees = _within(sides)
    pooled, degrees = _within(list(values.values()))
    variance, degrees = max((own / own_degrees, own_degrees), (pooled / degrees, degrees))
    means = [math.fsum(side) / len(side) for side in sides]
    size = abs(means[-1] - means[0]) if len(means) > 1 else abs(means[0])
    error = math.sqrt(max(variance, SD_FLOOR**2) * math.fsum(1.0 / len(side) for side in sides))
    return size > two_sided_critical(level, degrees) * error


def _within(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the sum of squares within groups, and its degrees of freedom."""
    total = 0.0
    for group in groups:
        mean = math.fsum(group) / len(group)
        total += math.fsum((value - mean) ** 2 for value in group)
    return total, sum(map(len, groups)) - len(groups)

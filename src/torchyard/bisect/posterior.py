"""Posterior over change points of a range of revisions, from noisy times.

The model: the logarithm of a time is an effect of its round (what the machine did then), plus the
level of its revision, plus noise. The hypotheses are

- no change: all revisions have the same level,
- a single change: two levels, the second from revision k on,
- several changes: three levels, with changes at k1 < k2.

Effects of rounds and the standard deviation of the noise are unknown and have flat priors; steps
between levels have Zellner's g-prior with g = number of degrees of freedom (unit information). With a
fixed g, all hypotheses that explain a huge change are equally likely, however well they explain the rest
(the information paradox); so g grows with the F statistic of the best hypothesis. The marginal likelihood is then a multivariate t density in closed form (Liang et al. 2008). It depends on
a change point only through which measured revisions lie on which side of it. No I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from torchyard.stats.distributions import two_counts_p, two_sided_critical
from torchyard.stats.launches import SD_FLOOR
from torchyard.stats.pairs import ONE_SIDED_P

CREDIBILITY: Final = 0.95
"""Posterior probability at which a hypothesis is accepted."""
LOCATION: Final = 0.98
"""Probability of the place of a single change, given that there is one. It is higher, because the search stops as soon
as it is reached."""
_CANDIDATES: Final = 0.95
"""Probability that the listed candidates contain the change."""
MIN_ROUNDS: Final = 3
"""Rounds with a revision before it can bound the culprit: one slow run must not decide."""
_SHRINKAGE: Final = 4.0
"""Degrees of freedom with which estimated variances are shrunk."""
_DIFFER_LEVEL: Final = 0.01
"""Level of the t test between the revisions before and after a change."""
_NO_CHANGE: Final = 0.05
_SEVERAL: Final = 0.1
"""Prior probabilities of no change and of several changes."""
_OUTLIER: Final = 6.0
_FEW: Final = 10.0
"""Distance of outliers, in robust standard deviations of many values, and how it grows for few."""
_MOST_OUTLIERS: Final = 0.15
_MANY: Final = 30
"""Share of runs that can be outliers, and the number of runs from which on it is checked."""
_POLISH_PASSES: Final = 3
MAD_TO_SD: Final = 1.4826
_ENOUGH_DEGREES: Final = 8
_SCALE_SHARE: Final = 0.1
"""Degrees of freedom from which g follows the F statistic, and the part of it: few residuals can be small by chance."""
_SMALLEST: Final = 1e-12
"""Sums of squares below this are rounding errors."""

Round = Mapping[int, float]
"""Logarithm of the time of each revision that was measured, by its index in the range."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Probabilities of all hypotheses about a range of revisions 0 (good) to n (bad)."""

    single: tuple[float, ...]
    """Probability that revision i is the only change; the first is 0."""
    no_change: float
    several: float
    changes: tuple[float, ...]
    """Expected number of changes at revision i, under all hypotheses."""
    pair: tuple[tuple[int, int], tuple[int, int]] | None
    """Most probable ranges (after, up to) of two changes, if measurements separate them."""
    rounds: tuple[int, ...]
    """Number of rounds in which each revision was measured."""
    shown: frozenset[tuple[int, int]] | None = None
    """Revisions before and after a change whose own rounds show the difference; None if that is not checked."""

    @property
    def best(self) -> int:
        """The most probable single change."""
        return max(range(len(self.single)), key=self.single.__getitem__)

    @property
    def culprit(self) -> int | None:
        """The single change, if it is decided and both sides of it were measured often enough."""
        best = self.best
        if self.single[best] < max(CREDIBILITY, LOCATION * math.fsum(self.single)):
            return None
        return best if self._enough([(best - 1, best)]) else None

    @property
    def has_several(self) -> bool:
        """Whether several changes are decided, from revisions that were measured often enough."""
        if self.pair is None or self.several < CREDIBILITY:
            return False
        return self._enough(self.pair)

    def _enough(self, changes: Sequence[tuple[int, int]]) -> bool:
        """Whether both sides of each change were measured often enough, and differ by themselves."""
        if self.shown is not None and not self.shown.issuperset(changes):
            return False
        return min(self.rounds[k] for ends in changes for k in ends) >= MIN_ROUNDS

    @property
    def has_none(self) -> bool:
        """Whether the difference between both ends is refuted."""
        return self.no_change >= CREDIBILITY


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Ratio of the times after and before a change, with a 95 % confidence interval."""

    ratio: float
    low: float
    high: float


class _Sums:
    """Sums of squares and products of the steps at each measured revision, without round effects.

    `steps[a][b]` is the product of the steps at the measured revisions a and b, `times[a]` that of a
    step and the times, `total` that of the times.
    """

    def __init__(self, rounds: Sequence[Round], last: int) -> None:
        weight = _weights(rounds, last)
        counts = Counter(revision for one in rounds for revision in one)
        self.revisions = sorted(counts)
        self.rounds = counts
        place = {revision: index for index, revision in enumerate(self.revisions)}
        size = len(self.revisions)
        self.steps = [[0.0] * (size + 1) for _ in range(size + 1)]
        self.times = [0.0] * (size + 1)
        self.total = 0.0
        self.degrees = 0
        self.g = 1.0
        for one in rounds:
            weights = {revision: weight.get(revision, 1.0) for revision in one}
            whole = math.fsum(weights.values())
            mean = math.fsum(weights[k] * value for k, value in one.items()) / whole
            self.degrees += len(one) - 1
            for revision, value in one.items():
                own = weights[revision]
                self.times[place[revision]] += own * (value - mean)
                self.total += own * (value - mean) ** 2
                row = self.steps[place[revision]]
                for other in one:
                    row[place[other]] -= own * weights[other] / whole
                row[place[revision]] += own
        for a in reversed(range(size)):
            self.times[a] += self.times[a + 1]
            for b in reversed(range(size)):
                self.steps[a][b] += (
                    self.steps[a + 1][b] + self.steps[a][b + 1] - self.steps[a + 1][b + 1]
                )

    def set_scale(self, most_explained: float) -> None:
        """Choose g for the largest sum of squares that a hypothesis explains."""
        rest = max(self.total - most_explained, _SMALLEST)
        statistic = most_explained / rest * (self.degrees - 2) / 2.0
        self.g = float(self.degrees)
        if self.degrees >= _ENOUGH_DEGREES:
            self.g = max(self.g, _SCALE_SHARE * statistic)

    def log_likelihood(self, explained: float, parameters: int) -> float:
        """Return the log marginal likelihood, relative to that of no change."""
        g = self.g
        share = max(0.0, 1.0 - explained / self.total) if self.total > _SMALLEST else 1.0
        return 0.5 * (
            (self.degrees - parameters) * math.log1p(g) - self.degrees * math.log1p(g * share)
        )

    def one_step(self, a: int) -> float:
        """Return the sum of squares that a step at `a` explains."""
        size = self.steps[a][a]
        return self.times[a] ** 2 / size if size > _SMALLEST else 0.0

    def two_steps(self, a: int, b: int) -> tuple[float, float, float]:
        """Return both steps at `a` and `b`, and the sum of squares that they explain."""
        aa, ab, bb = self.steps[a][a], self.steps[a][b], self.steps[b][b]
        determinant = aa * bb - ab * ab
        if determinant <= _SMALLEST:
            return 0.0, 0.0, 0.0
        first = (bb * self.times[a] - ab * self.times[b]) / determinant
        second = (aa * self.times[b] - ab * self.times[a]) / determinant
        return first, second, first * self.times[a] + second * self.times[b]


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
    positive = [value for one in residuals for value in one.values() if value > _SMALLEST]
    limit = outlier_limit(degrees) * max(MAD_TO_SD * median(positive or (0.0,)), SD_FLOOR)
    limits = dict.fromkeys(levels, limit)
    # Revisions between the ends may be noisier: their runs are not outliers then.
    between = [k for k in levels if k not in {min(levels), max(levels)}]
    between_degrees = sum(len(values[k]) - 1 for k in between)
    positive = [of[k] for of in residuals for k in between if of.get(k, 0.0) > _SMALLEST]
    if between_degrees and positive:
        limit = max(limit, outlier_limit(between_degrees) * MAD_TO_SD * median(positive))
        limits.update(dict.fromkeys(between, limit))
    ends = sorted((levels[min(levels)], levels[max(levels)]))
    unconfirmed = {
        revision
        for revision, several in values.items()
        if len(several) == 1 and not ends[0] - limit <= several[0] <= ends[1] + limit
    }
    kept: list[Round] = [
        {
            revision: value
            for revision, value in one.items()
            if of[revision] <= limits[revision] and revision not in unconfirmed
        }
        for one, of in zip(rounds, residuals, strict=True)
    ]
    kept = [one for one in kept if len(one) > 1]
    disturbed = [
        sum(of.get(revision, 0.0) > limits[revision] for of in residuals)
        for revision in (min(levels), max(levels))
    ]
    one_sided = two_counts_p(*disturbed) < ONE_SIDED_P
    both = all(any(revision in one for one in kept) for revision in (min(levels), max(levels)))
    many = count >= _MANY and sum(map(len, kept)) < (1.0 - _MOST_OUTLIERS) * count
    return kept if both and not one_sided and not many else list(rounds)


def outlier_limit(degrees: int) -> float:
    """Return the distance of outliers in robust standard deviations, which few values underestimate.

    Less than 0.5 % of samples of 4 or more normal values contain one beyond it.
    """
    return _OUTLIER * (1.0 + _FEW / degrees)


def _weights(rounds: Sequence[Round], last: int) -> dict[int, float]:
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
    if degrees < _ENOUGH_DEGREES:
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


def differ(rounds: Sequence[Round], low: int, high: int, last: int) -> bool:
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
    return size > two_sided_critical(_DIFFER_LEVEL, degrees) * error


def _within(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the sum of squares within groups, and its degrees of freedom."""
    total = 0.0
    for group in groups:
        mean = math.fsum(group) / len(group)
        total += math.fsum((value - mean) ** 2 for value in group)
    return total, sum(map(len, groups)) - len(groups)


def posterior_of(rounds: Sequence[Round], last: int, *, margin: float) -> Posterior:
    """Return the posterior of the range 0 to `last`; both ends are in every round.

    Steps of several changes that are estimated within `margin` are not changes.
    """
    used = without_outliers(rounds)
    sums = _Sums(used, last)
    revisions = sums.revisions
    gaps = [high - low for low, high in pairwise(revisions)]
    pairs = last * (last - 1) / 2.0
    several_prior = _SEVERAL / pairs if pairs else 0.0
    single_prior = (1.0 - _NO_CHANGE - (_SEVERAL if pairs else 0.0)) / last
    limit = math.log1p(margin)
    # Logarithms of likelihood x prior: of each single change, of two changes in one gap, in two gaps.
    one_steps = [sums.one_step(a) for a in range(1, len(revisions))]
    two_steps: dict[tuple[int, int], float] = {}
    for a in range(1, len(revisions)):
        for b in range(a + 1, len(revisions)):
            first, second, explained = sums.two_steps(a, b)
            if min(abs(first), abs(second)) > limit:
                two_steps[a, b] = explained
    sums.set_scale(max(one_steps + list(two_steps.values())))
    logs = [sums.log_likelihood(explained, 1) for explained in one_steps]
    apart = {ends: sums.log_likelihood(explained, 2) for ends, explained in two_steps.items()}
    top = max(0.0, *logs, *apart.values())
    none = _NO_CHANGE * math.exp(-top)
    single = [0.0] * (last + 1)
    changes = [0.0] * (last + 1)
    several = 0.0
    for low, gap, log in zip(revisions, gaps, logs, strict=False):
        likelihood = math.exp(log - top)
        together = several_prior * likelihood * gap * (gap - 1) / 2.0
        several += together
        for k in range(low + 1, low + gap + 1):
            single[k] = single_prior * likelihood
            changes[k] += single[k] + 2.0 * together / gap
    weights = {
        (a, b): several_prior * math.exp(log - top) * gaps[a - 1] * gaps[b - 1]
        for (a, b), log in apart.items()
    }
    for ends, weight in weights.items():
        several += weight
        for end in ends:
            for k in range(revisions[end - 1] + 1, revisions[end] + 1):
                changes[k] += weight / gaps[end - 1]
    total = none + math.fsum(single) + several
    best = max(weights, key=weights.__getitem__) if weights else None
    pair = None
    if best is not None:
        pair = (
            (revisions[best[0] - 1], revisions[best[0]]),
            (revisions[best[1] - 1], revisions[best[1]]),
        )
    top_single = max(range(last + 1), key=single.__getitem__)
    checked = {(top_single - 1, top_single), *(pair or ())}
    return Posterior(
        single=tuple(value / total for value in single),
        no_change=none / total,
        several=several / total,
        changes=tuple(value / total for value in changes),
        pair=pair,
        rounds=tuple(sums.rounds[k] for k in range(last + 1)),
        shown=frozenset(one for one in checked if differ(used, *one, last)),
    )


def next_revision(posterior: Posterior, weights: Sequence[float] = ()) -> int | None:
    """Return the revision whose measurement halves the posterior; None if only the ends help.

    `weights` are relative prior weights of a change at each revision; empty means equal ones.
    """
    inner = range(1, len(posterior.single) - 1)
    if not inner:
        return None
    best = posterior.best
    to_confirm: list[int] = []
    if posterior.single[best] >= CREDIBILITY:
        to_confirm = [best - 1, best]
    elif posterior.pair is not None and posterior.several >= CREDIBILITY:
        to_confirm = [k for ends in posterior.pair for k in ends]
    sides = [k for k in to_confirm if k in inner]
    if sides:
        return min(sides, key=posterior.rounds.__getitem__)
    masses = [
        a * b
        for a, b in zip(posterior.changes, weights or [1.0] * len(posterior.changes), strict=True)
    ]
    half = math.fsum(masses) / 2.0
    below, distances = 0.0, {}
    for k in inner:
        below += masses[k]
        distances[k] = abs(below - half)
    return min(distances, key=distances.__getitem__)


def candidates(posterior: Posterior) -> list[int]:
    """Return the fewest revisions that contain the change with 95 % probability, in order."""
    total = math.fsum(posterior.changes)
    chosen: list[int] = []
    mass = 0.0
    for k in sorted(range(len(posterior.changes)), key=lambda k: -posterior.changes[k]):
        if mass >= _CANDIDATES * total:
            break
        chosen.append(k)
        mass += posterior.changes[k]
    return sorted(chosen)


def effect_of(rounds: Sequence[Round], change: int, *, alpha: float = 0.05) -> Effect:
    """Return the effect of a single change at a revision, from all measurements around it."""
    used = without_outliers(rounds)
    sums = _Sums(used, max(max(one) for one in used))
    place = next(i for i, revision in enumerate(sums.revisions) if revision >= change)
    size = sums.steps[place][place]
    step = sums.times[place] / size
    degrees = max(1, sums.degrees - 1)
    variance = max(0.0, sums.total - sums.one_step(place)) / degrees
    width = two_sided_critical(alpha, degrees) * math.sqrt(variance / size)
    return Effect(ratio=math.exp(step), low=math.exp(step - width), high=math.exp(step + width))

"""Posterior over change points of a range of revisions, from noisy times.

The model: the logarithm of a time is an effect of its round (what the machine did then), plus the
level of its revision, plus noise. The hypotheses are

- no change: all revisions have the same level,
- a single change: two levels, the second from revision k on,
- several changes: three levels, with changes at k1 < k2.

Effects of rounds and the standard deviation of the noise are unknown and have flat priors; steps
between levels have Zellner's g-prior with g = number of degrees of freedom (unit information). With a
fixed g, all hypotheses that explain a huge change are equally likely, however well they explain the rest
(the information paradox); so g grows with the F statistic of the best hypothesis. The marginal likelihood is then a
multivariate t density in closed form (Liang et al. 2008). It depends on a change point only through which
measured revisions lie on which side of it. Outliers and the relative variances of revisions come from
`noise.py`, which also checks both sides of a change by themselves before it is named. No I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from torchyard.bisect.noise import (
    ENOUGH_DEGREES,
    MIN_ROUNDS,
    SEVERAL_LEVEL,
    SINGLE_LEVEL,
    SMALLEST,
    Round,
    differ,
    inverse_variances,
    without_outliers,
)
from torchyard.stats.distributions import two_sided_critical

CREDIBILITY: Final = 0.95
"""Posterior probability at which a hypothesis is accepted."""
LOCATION: Final = 0.98
"""Probability of the place of a single change, given that there is one. It is higher, because the search stops as soon
as it is reached."""
_CANDIDATES: Final = 0.95
"""Probability that the listed candidates contain the change."""
_NO_CHANGE: Final = 0.05
_SEVERAL: Final = 0.1
"""Prior probabilities of no change and of several changes."""
_SCALE_SHARE: Final = 0.1
"""Part of the F statistic that g follows, from `ENOUGH_DEGREES` on: few residuals can be small by chance."""


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
        weight = inverse_variances(rounds, last)
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
        rest = max(self.total - most_explained, SMALLEST)
        statistic = most_explained / rest * (self.degrees - 2) / 2.0
        self.g = float(self.degrees)
        if self.degrees >= ENOUGH_DEGREES:
            self.g = max(self.g, _SCALE_SHARE * statistic)

    def log_likelihood(self, explained: float, parameters: int) -> float:
        """Return the log marginal likelihood, relative to that of no change."""
        g = self.g
        share = max(0.0, 1.0 - explained / self.total) if self.total > SMALLEST else 1.0
        return 0.5 * (
            (self.degrees - parameters) * math.log1p(g) - self.degrees * math.log1p(g * share)
        )

    def one_step(self, a: int) -> float:
        """Return the sum of squares that a step at `a` explains."""
        size = self.steps[a][a]
        return self.times[a] ** 2 / size if size > SMALLEST else 0.0

    def two_steps(self, a: int, b: int) -> tuple[float, float, float]:
        """Return both steps at `a` and `b`, and the sum of squares that they explain."""
        aa, ab, bb = self.steps[a][a], self.steps[a][b], self.steps[b][b]
        determinant = aa * bb - ab * ab
        if determinant <= SMALLEST:
            return 0.0, 0.0, 0.0
        first = (bb * self.times[a] - ab * self.times[b]) / determinant
        second = (aa * self.times[b] - ab * self.times[a]) / determinant
        return first, second, first * self.times[a] + second * self.times[b]


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
    top_single = max(range(1, last + 1), key=single.__getitem__)
    if several / total < CREDIBILITY:
        checked, level = [(top_single - 1, top_single)], SINGLE_LEVEL
    else:
        checked, level = list(pair or ()), SEVERAL_LEVEL
    return Posterior(
        single=tuple(value / total for value in single),
        no_change=none / total,
        several=several / total,
        changes=tuple(value / total for value in changes),
        pair=pair,
        rounds=tuple(sums.rounds[k] for k in range(last + 1)),
        shown=frozenset(one for one in checked if differ(used, one[0], one[1], last, level)),
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

"""Find where a stretch of values changes its level, and how significant each change is.

Circular binary segmentation (Olshen, Venkatraman, Lucito & Wigler 2004) with ranks: of all inner
segments and all splits in two, the one that lies highest or lowest against the rest is tested; if
it is significant, its ends are change points and the parts are searched in the same way. An inner
segment finds a step that is later reverted, which a split in two hides. A second pass, as in
Hunter (Fleming, Kolaczkowski, Kumar, Das, McCarthy, Pattabhiraman & Ingo 2023), tests each change
point between its neighbours only and drops the weakest until all are significant.

All segments are scored from running sums of weighted ranks, so that thousands of them cost little
more than one. Works on logarithms of values.

The Mann-Whitney test only uses which of two values is larger. Under the null hypothesis every order of
the values is equally likely, so the p-value can be counted for any noise distribution: outliers, heavy
tails and machines with two speeds do not raise false alarms, and no variance has to be estimated. Values
may have weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.distributions import normal_quantile, two_sided_p

Values = NDArray[np.float64]

_COUNTED_UP_TO: Final = 20
"""Size of the smaller side up to which orders are counted; above, Student's t on ranks is accurate
(Conover & Iman 1981)."""
_COUNTED_FROM: Final = 1.5
"""Standard deviations below which the p-value need not be exact ..."""
_COUNTED_ALWAYS: Final = 30
"""... unless there are too few values for the approximation."""


def weighted_ranks(values: Values, weights: Values) -> Values:
    """Return the weight of all smaller values, plus half that of equal ones, for each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    before = np.concatenate(([0.0], np.cumsum(weights[order])))
    first = np.searchsorted(ordered, values, side="left")
    past = np.searchsorted(ordered, values, side="right")
    ranks: Values = (before[first] + before[past]) / 2.0
    return ranks


def mann_whitney_p(one: int, other: int, larger_share: float) -> float:
    """Return the two-sided p-value of the share of pairs in which the value of the first side is larger.

    Exact if it is small and one side is small. Ties make it conservative.
    """
    small, large = sorted((one, other))
    if small < 1:
        return 1.0
    uneven = min(larger_share, 1.0 - larger_share)
    total = small + large
    score = (0.5 - uneven) * math.sqrt(12.0 * small * large / (total + 1))
    if small <= _COUNTED_UP_TO and (score > _COUNTED_FROM or total <= _COUNTED_ALWAYS):
        # Round a share between two possible ones to the less significant one.
        fewest = math.ceil(uneven * small * large - 1e-9)
        table = _orders(small, large)
        return min(1.0, 2.0 * float(table[min(fewest, table.size - 1)]))
    residual = max(total - 1 - score**2, 1e-9)
    return two_sided_p(score * math.sqrt(max(total - 2, 1) / residual), max(total - 2.0, 1.0))


@lru_cache(maxsize=2048)
def _orders(small: int, large: int) -> Values:
    """Return P(U <= u) for u up to the middle: cumulative coefficients of a Gaussian binomial.

    Multiplied and divided factor by factor, so that the small counts of the tail come from small
    counts only and stay exact.
    """
    size = small * large // 2 + 1
    counts = np.zeros(size)
    counts[0] = 1.0
    for factor in range(1, small + 1):
        shift = large + factor
        if shift < size:
            counts[shift:] -= counts[:-shift].copy()
        padded = np.zeros(-(-size // factor) * factor)
        padded[:size] = counts
        counts = np.cumsum(padded.reshape(-1, factor), axis=0).reshape(-1)[:size]
    below: Values = np.cumsum(counts) / math.comb(small + large, small)
    return below


def shift_between(
    before: tuple[Values, Values],
    after: tuple[Values, Values],
    *,
    independent_share: float = 1.0,
    alpha: float = 0.05,
) -> tuple[float, float, float]:
    """Return the shift of the second side over the first, and the ends of its interval.

    Median of all differences between the sides (Hodges & Lehmann 1963); the interval contains the
    shifts that the rank test does not reject. Each side is values and weights. `independent_share` is
    the effective sample size per value.
    """
    differences = (after[0][:, np.newaxis] - before[0][np.newaxis, :]).ravel()
    weights = (after[1][:, np.newaxis] * before[1][np.newaxis, :]).ravel()
    order = np.argsort(differences)
    ordered = differences[order]
    below = np.cumsum(weights[order])
    below = (below - weights[order] / 2.0) / below[-1]
    sizes = [independent_share * _effective_size(side[1]) for side in (before, after)]
    product, total = sizes[0] * sizes[1], sizes[0] + sizes[1]
    reach = normal_quantile(1.0 - alpha / 2.0) * math.sqrt((total + 1.0) / (12.0 * product))
    low, middle, high = np.interp([0.5 - reach, 0.5, 0.5 + reach], below, ordered)
    return float(middle), float(low), float(high)


def _effective_size(weights: Values) -> float:
    """Return the effective number of values of equal weight."""
    return float(weights.sum()) ** 2 / float(weights @ weights)


Places = NDArray[np.intp]

_SIZE_CLASSES: Final = (4, 5, 6, 8, 12, 20, 40)
_COARSE_ABOVE: Final = 100
"""In longer parts, inner segments start and end at every second position only, a quarter of the work."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Segments to test by start and end, grouped by the size of the smaller side."""

    first: Places
    last: Places
    groups: tuple[int, ...]
    """Start of each group, and the end."""


def one_split(place: int) -> Segments:
    """Return the split in two at `place`."""
    return Segments(first=np.array([0]), last=np.array([place]), groups=(0, 1))


@lru_cache(maxsize=512)
def all_splits(size: int, fewest: int) -> Segments:
    """Return every split in two with at least `fewest` values on both sides."""
    last = np.arange(fewest, size - fewest + 1)
    return _grouped(np.zeros_like(last), last, size)


@lru_cache(maxsize=512)
def inner_segments(size: int, fewest: int) -> Segments:
    """Return every segment with at least `fewest` values inside, before and after it."""
    places = np.arange(fewest, size - fewest + 1, 2 if size > _COARSE_ABOVE else 1)
    one, other = np.triu_indices(places.size, k=1)
    first, last = places[one], places[other]
    long_enough = last - first >= fewest
    return _grouped(first[long_enough], last[long_enough], size)


def _grouped(first: Places, last: Places, size: int) -> Segments:
    length = last - first
    classes = np.searchsorted(_SIZE_CLASSES, np.minimum(length, size - length))
    order = np.argsort(classes, kind="stable")
    begins = np.flatnonzero(np.diff(classes[order], prepend=-1))
    return Segments(first=first[order], last=last[order], groups=(*begins.tolist(), order.size))


class SegmentSums:
    """Cumulative sums of a part, from which any segment of it is tested."""

    def __init__(self, values: Values, weights: Values, *, independent_share: float) -> None:
        ranks = weighted_ranks(values, weights)
        self._ranked = np.concatenate(([0.0], np.cumsum(weights * ranks)))
        self._weight = np.concatenate(([0.0], np.cumsum(weights)))
        self._square = np.concatenate(([0.0], np.cumsum(weights**2)))
        self._share = independent_share

    def larger(self, segments: Segments) -> Values:
        """Return the share of pairs (one value inside, one outside) in which the inner one is larger."""
        first, last = segments.first, segments.last
        inside = self._weight[last] - self._weight[first]
        above = self._ranked[last] - self._ranked[first] - inside**2 / 2.0
        share: Values = above / (inside * (self._weight[-1] - inside))
        return share

    def effective_sizes(self, segments: Segments) -> tuple[Values, Values]:
        """Return the effective number of independent values inside and outside."""
        first, last = segments.first, segments.last
        inside = self._weight[last] - self._weight[first]
        square = self._square[last] - self._square[first]
        outside = self._weight[-1] - inside
        return (
            self._share * np.round(inside**2 / square),
            self._share * np.round(outside**2 / (self._square[-1] - square)),
        )

    def best(self, segments: Segments, *, tests: float) -> tuple[float, tuple[int, int]]:
        """Return the most significant segment and its p-value, corrected for the number of tests."""
        larger = self.larger(segments)
        inside, outside = self.effective_sizes(segments)
        # Distance of the share from 1/2, in standard deviations up to a constant.
        scores = np.abs(larger - 0.5) * np.sqrt(inside * outside / (inside + outside + 1.0))
        best_p, best = math.inf, (0, 0)
        # Scores are comparable within one size only, so the best of each size is tested.
        for begin, end in pairwise(segments.groups):
            place = begin + int(np.argmax(scores[begin:end]))
            chance = tests * mann_whitney_p(
                math.floor(inside[place] + 1e-9),
                math.floor(outside[place] + 1e-9),
                float(larger[place]),
            )
            if chance < best_p:
                best_p, best = chance, (int(segments.first[place]), int(segments.last[place]))
        return best_p, best


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Values in order of time, with the parameters of the tests."""

    values: Values
    calm: Values
    """The values with outliers clipped: ranks decide whether there is a change, these where."""
    weights: Values
    independent_share: float
    """Effective sample size per value: below 1 if neighbors are correlated."""
    alpha: float
    """False alarm probability of a stretch without changes."""
    least: float
    """Smallest relevant change, on the scale of the values."""
    fewest: int
    """Minimum number of values on each side of a change."""
    nearest: int
    """Maximum number of values on each side from which the size of a change is estimated."""
    open_from: int = 0
    """Changes before this position are settled and not searched for."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A change of level before the value at `place`."""

    place: int
    p_value: float
    shift: float
    low: float
    high: float


def find_cuts(stretch: Stretch) -> list[Cut]:
    """Return the changes in order; none if there are too few values."""
    places: set[int] = set()
    waiting = [(0, stretch.values.size)]
    while waiting:
        start, end = waiting.pop()
        cut_places = _strongest(stretch, start, end)
        if cut_places:
            places.update(cut_places)
            bounds = [start, *cut_places, end]
            waiting += pairwise(bounds)
    return significant_cuts(
        stretch, sorted(place for place in places if place >= stretch.open_from)
    )


def _split_tests(size: int) -> float:
    """Return the effective number of independent tests of the search over all splits.

    Neighboring splits share nearly all of their values, so it grows slowly. From simulated noise:
    at 10, 20, 50, 100 and 200 values 1, 7, 20, 20 and 20.
    """
    return min(max(0.55 * (size - 8), 1.0), 25.0)


def _segment_tests(size: int) -> float:
    """Return the same for inner segments: 12, 350, 650 and 650 at 20, 50, 100 and 200 values."""
    return min(size**2 / 8.0, 7.0 * size)


def _strongest(stretch: Stretch, start: int, end: int) -> list[int]:
    """Return the ends of the most significant segment or split; empty if none is significant."""
    size, fewest = end - start, stretch.fewest
    if size < 2 * fewest:
        return []
    sums = _sums(stretch, start, end)
    best_p, best = sums.best(all_splits(size, fewest), tests=_split_tests(size))
    if size >= 3 * fewest:
        segment_p, segment = sums.best(inner_segments(size, fewest), tests=_segment_tests(size))
        if segment_p < best_p:
            best_p, best = segment_p, segment
    if best_p > stretch.alpha:
        return []
    return [start + place for place in best if 0 < place < size]


def significant_cuts(stretch: Stretch, places: list[int]) -> list[Cut]:
    """Return the changes that are significant between their neighbors, dropping the weakest in turn."""
    while True:
        places = _moved(stretch, places)
        ends = [0, *places, stretch.values.size]
        cuts = [
            _tested(stretch, before, place, after)
            for before, place, after in zip(ends[:-2], places, ends[2:], strict=True)
        ]
        failing = [
            cut for cut in cuts if cut.p_value > stretch.alpha or abs(cut.shift) < stretch.least
        ]
        if not failing:
            return cuts
        weakest = max(failing, key=lambda cut: (cut.p_value, -abs(cut.shift)))
        places = [place for place in places if place != weakest.place]


def _moved(stretch: Stretch, places: list[int]) -> list[int]:
    """Move each change to where two levels fit best between its neighbors, from left to right.

    By least squares, since ranks do not see the size of a rise.
    """
    moved = list(places)
    ends = [*places[1:], stretch.values.size]
    for number, after in zip(range(len(places)), ends, strict=False):
        before = moved[number - 1] if number else 0
        choices = np.arange(
            max(before + stretch.fewest, stretch.open_from), after - stretch.fewest + 1
        )
        if choices.size:
            weights = stretch.weights[before:after]
            part = stretch.calm[before:after]
            part = part - float(weights @ part) / float(weights.sum())
            inside = np.cumsum(weights)[choices - before - 1]
            drop = np.cumsum(weights * part)[choices - before - 1] ** 2
            gain = drop / (inside * (float(weights.sum()) - inside))
            moved[number] = int(choices[np.argmax(gain)])
    return moved


def _tested(stretch: Stretch, before: int, place: int, after: int) -> Cut:
    chance, _ = _sums(stretch, before, after).best(
        one_split(place - before), tests=_split_tests(after - before)
    )
    near = (
        slice(max(before, place - stretch.nearest), place),
        slice(place, min(after, place + stretch.nearest)),
    )
    shift, low, high = shift_between(
        (stretch.values[near[0]], stretch.weights[near[0]]),
        (stretch.values[near[1]], stretch.weights[near[1]]),
        independent_share=stretch.independent_share,
    )
    return Cut(place=place, p_value=min(1.0, chance), shift=shift, low=low, high=high)


def _sums(stretch: Stretch, start: int, end: int) -> SegmentSums:
    return SegmentSums(
        stretch.values[start:end],
        stretch.weights[start:end],
        independent_share=stretch.independent_share,
    )

"""Find where a stretch of values changes its level, and how significant each change is.

Circular binary segmentation (Olshen, Venkatraman, Lucito & Wigler 2004) with ranks: of all inner
segments and all splits in two, the one that lies highest or lowest against the rest is tested; if
it is significant, its ends are change points and the parts are searched in the same way. An inner
segment finds a step that is later reverted, which a split in two hides. A second pass, as in
Hunter (Fleming, Kolaczkowski, Kumar, Das, McCarthy, Pattabhiraman & Ingo 2023), tests each change
point between its neighbours only and drops the weakest until all are significant.

All segments are scored from running sums of weighted ranks, so that thousands of them cost little
more than one. Works on logarithms of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.change_points.ranks import (
    Values,
    mann_whitney_p,
    shift_between,
    weighted_ranks,
)

Places = NDArray[np.intp]

_SIZE_CLASSES: Final = (4, 5, 6, 8, 12, 20, 40)
_COARSE_ABOVE: Final = 100
"""In longer parts inner pieces begin and end at every second place only: a quarter of the work."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Pieces to judge, by where each begins and ends, grouped by the size of the smaller side."""

    first: Places
    last: Places
    groups: tuple[int, ...]
    """Where each group begins, and the end."""


def one_split(place: int) -> Pieces:
    """All before the place against all after it."""
    return Pieces(first=np.array([0]), last=np.array([place]), groups=(0, 1))


@lru_cache(maxsize=512)
def all_splits(size: int, fewest: int) -> Pieces:
    """Every split in two that leaves so many values on both sides."""
    last = np.arange(fewest, size - fewest + 1)
    return _grouped(np.zeros_like(last), last, size)


@lru_cache(maxsize=512)
def inner_pieces(size: int, fewest: int) -> Pieces:
    """Every piece with so many values in it, before it and after it."""
    places = np.arange(fewest, size - fewest + 1, 2 if size > _COARSE_ABOVE else 1)
    one, other = np.triu_indices(places.size, k=1)
    first, last = places[one], places[other]
    long_enough = last - first >= fewest
    return _grouped(first[long_enough], last[long_enough], size)


def _grouped(first: Places, last: Places, size: int) -> Pieces:
    length = last - first
    classes = np.searchsorted(_SIZE_CLASSES, np.minimum(length, size - length))
    order = np.argsort(classes, kind="stable")
    begins = np.flatnonzero(np.diff(classes[order], prepend=-1))
    return Pieces(first=first[order], last=last[order], groups=(*begins.tolist(), order.size))


class PieceSums:
    """Sums from the start of a part, from which any piece of it is judged at once."""

    def __init__(self, values: Values, weights: Values, *, independent_share: float) -> None:
        ranks = weighted_ranks(values, weights)
        self._ranked = np.concatenate(([0.0], np.cumsum(weights * ranks)))
        self._weight = np.concatenate(([0.0], np.cumsum(weights)))
        self._square = np.concatenate(([0.0], np.cumsum(weights**2)))
        self._share = independent_share

    def larger(self, pieces: Pieces) -> Values:
        """Share of pairs, one value inside and one outside, in which the inner one is larger."""
        first, last = pieces.first, pieces.last
        inside = self._weight[last] - self._weight[first]
        above = self._ranked[last] - self._ranked[first] - inside**2 / 2.0
        share: Values = above / (inside * (self._weight[-1] - inside))
        return share

    def worths(self, pieces: Pieces) -> tuple[Values, Values]:
        """How many independent values of equal weight are inside and outside."""
        first, last = pieces.first, pieces.last
        inside = self._weight[last] - self._weight[first]
        square = self._square[last] - self._square[first]
        outside = self._weight[-1] - inside
        return (
            self._share * np.round(inside**2 / square),
            self._share * np.round(outside**2 / (self._square[-1] - square)),
        )

    def best(self, pieces: Pieces, *, tests: float) -> tuple[float, tuple[int, int]]:
        """The least probable piece and its chance, made larger by the number of tests."""
        larger = self.larger(pieces)
        inside, outside = self.worths(pieces)
        # How far the share is from even, in its standard deviations but for a constant.
        scores = np.abs(larger - 0.5) * np.sqrt(inside * outside / (inside + outside + 1.0))
        best_p, best = math.inf, (0, 0)
        # For one size the score orders by chance; between sizes it does not, so each has a turn.
        for begin, end in pairwise(pieces.groups):
            place = begin + int(np.argmax(scores[begin:end]))
            chance = tests * mann_whitney_p(
                math.floor(inside[place] + 1e-9),
                math.floor(outside[place] + 1e-9),
                float(larger[place]),
            )
            if chance < best_p:
                best_p, best = chance, (int(pieces.first[place]), int(pieces.last[place]))
        return best_p, best


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Values in order of time, with what is needed to judge them."""

    values: Values
    calm: Values
    """The values with outliers drawn in: ranks say whether there is a change, these say where."""
    weights: Values
    independent_share: float
    """How many of the values are worth an independent one: below 1 when neighbours are alike."""
    alpha: float
    """Chance that a quiet stretch shows a change."""
    least: float
    """Smallest change that counts, on the scale of the values."""
    fewest: int
    """Values on each side of a change."""
    nearest: int
    """Values on each side that a change's size is taken from, at most."""
    open_from: int = 0
    """Changes before this place are settled and not looked for."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A change of level before the value at `place`."""

    place: int
    p_value: float
    shift: float
    low: float
    high: float


def find_cuts(stretch: Stretch) -> list[Cut]:
    """The changes in order; none when there are too few values."""
    places: set[int] = set()
    waiting = [(0, stretch.values.size)]
    while waiting:
        start, end = waiting.pop()
        found = _strongest(stretch, start, end)
        if found:
            places.update(found)
            bounds = [start, *found, end]
            waiting += pairwise(bounds)
    return standing(stretch, sorted(place for place in places if place >= stretch.open_from))


def _splits_worth(size: int) -> float:
    """How many independent tests the search over all splits amounts to.

    Neighbouring splits share nearly all of their values, so it grows slowly. From simulated noise:
    at 10, 20, 50, 100 and 200 values 1, 7, 20, 20 and 20.
    """
    return min(max(0.55 * (size - 8), 1.0), 25.0)


def _pieces_worth(size: int) -> float:
    """The same for inner pieces: 12, 350, 650 and 650 at 20, 50, 100 and 200 values."""
    return min(size**2 / 8.0, 7.0 * size)


def _strongest(stretch: Stretch, start: int, end: int) -> list[int]:
    """The ends of the piece, or the split, that stands out most; empty when none does."""
    size, fewest = end - start, stretch.fewest
    if size < 2 * fewest:
        return []
    sums = _sums(stretch, start, end)
    best_p, best = sums.best(all_splits(size, fewest), tests=_splits_worth(size))
    if size >= 3 * fewest:
        piece_p, piece = sums.best(inner_pieces(size, fewest), tests=_pieces_worth(size))
        if piece_p < best_p:
            best_p, best = piece_p, piece
    if best_p > stretch.alpha:
        return []
    return [start + place for place in best if 0 < place < size]


def standing(stretch: Stretch, places: list[int]) -> list[Cut]:
    """The changes that stand between their neighbours, after the weakest was dropped in turn."""
    while True:
        places = _moved(stretch, places)
        ends = [0, *places, stretch.values.size]
        cuts = [
            _judged(stretch, before, place, after)
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
    """Each change where two levels fit best between its neighbours, from left to right.

    By least squares: ranks do not see that one of two rises is larger.
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


def _judged(stretch: Stretch, before: int, place: int, after: int) -> Cut:
    chance, _ = _sums(stretch, before, after).best(
        one_split(place - before), tests=_splits_worth(after - before)
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


def _sums(stretch: Stretch, start: int, end: int) -> PieceSums:
    return PieceSums(
        stretch.values[start:end],
        stretch.weights[start:end],
        independent_share=stretch.independent_share,
    )

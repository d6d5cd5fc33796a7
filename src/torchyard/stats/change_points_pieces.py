"""How far each piece of a part of a series stands out against the rest of it.

All pieces are judged from running sums of weighted ranks, so that thousands of them cost little more
than one. Knows neither which pieces are worth judging nor what follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.change_points_ranks import Values, mann_whitney_p, weighted_ranks

__all__ = ["PieceSums", "Pieces", "all_splits", "inner_pieces", "one_split"]

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

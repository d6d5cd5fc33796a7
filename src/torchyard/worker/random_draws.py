"""Workloads that draw random numbers: the same stream for both, or statistics over draws.

Inductor draws from a generator of its own unless `fallback_random` is set; with it, compiled code
draws what eager code draws. The timed code must not have the setting, so a second callable of the same
backend is compiled for the check. The timed code itself is compared with eager code by the means and
mean squares of its results over several seeds. Runs inside the target.
"""

import math
from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker import options
from torchyard.worker.side import Side
from torchyard.worker.tensor_distance import Results, shapes_of, to_plain

SETTING = "inductor.fallback_random"
DRAWS = 8
GROUPS = 3
"""Sets of eager draws: how far two of them are from each other is the measure."""
FURTHER = 4.0
"""Times as far from eager code's means as these are from each other is too far."""
LEAST_NUMBERS = 64
"""The means of smaller tensors say too little."""


class Differs(NamedTuple):
    """Whether two distributions differ, in words."""

    wrong: bool
    text: str


def twin_with_fallback(side: Side) -> Tuple[Optional[Side], str]:
    """The same variant compiled to draw what eager code draws, or why there is none."""
    reason = options.why_not(SETTING, side.backend, side.model.training)
    if reason:
        return None, ""
    chosen = dict(side.options)
    chosen[SETTING] = True
    try:
        return (
            Side(side.name, side.backend, side.precision, side.model, side.device, chosen),
            "",
        )
    except Exception as error:  # an older torch may lack the setting
        return None, type(error).__name__


def distributions_differ(eager: Side, candidate: Side, seed: int, place: Any) -> Differs:
    """Compare means and mean squares over draws."""
    sets = [_Moments(eager, seed + 100 * group, place) for group in range(1, GROUPS + 1)]
    other = _Moments(candidate, seed + 100, place)
    if any(one.shapes != other.shapes for one in sets) or not other.shapes:
        return Differs(False, "its shapes are random, too")
    compared = 0
    for group, tensors in other.means.items():
        for index, _ in enumerate(tensors):
            if tensors[index].numel() < LEAST_NUMBERS:
                continue
            compared += 1
            for kind, what in (("means", "mean"), ("squares", "mean square")):
                mine = getattr(other, kind)[group][index]
                theirs = [getattr(one, kind)[group][index] for one in sets]
                apart = max(
                    _distance(theirs[one], theirs[two])
                    for one in range(GROUPS)
                    for two in range(one)
                )
                far = min(_distance(mine, one) for one in theirs)
                size = _distance(theirs[0], torch.zeros_like(theirs[0]))
                if not far <= FURTHER * apart + 0.01 * size:
                    return Differs(
                        True,
                        "%s %d: over %d draws its %s is %.3g from that of eager code, and sets of "
                        "eager draws are up to %.3g apart"
                        % (group, index, DRAWS, what, far, apart),
                    )
    if not compared:
        return Differs(False, "")
    return Differs(False, "means over %d draws agree with those of eager code" % DRAWS)


class _Moments:
    """Means and mean squares of results over some seeds."""

    def __init__(self, side: Side, seed: int, place: Any) -> None:
        self.means: Any = {}
        self.squares: Any = {}
        self.shapes: Any = None
        for draw in range(DRAWS):
            results = to_plain(side.results(seed + draw)[0], place)
            shapes = shapes_of(results)
            if self.shapes is None:
                self.shapes = shapes
            elif self.shapes != shapes:
                self.shapes = {}
                return
            self._add(results)

    def _add(self, results: Results) -> None:
        for group, tensors in results.items():
            means: List[Any] = self.means.setdefault(group, [0.0] * len(tensors))
            squares: List[Any] = self.squares.setdefault(group, [0.0] * len(tensors))
            for index, tensor in enumerate(tensors):
                numbers = tensor.double()
                means[index] = means[index] + numbers / DRAWS
                squares[index] = squares[index] + numbers * numbers / DRAWS


def _distance(one: Any, other: Any) -> float:
    gap = one - other
    total = float((gap * gap).sum())
    return math.sqrt(total) if math.isfinite(total) else math.inf

"""Workloads with random numbers: the same stream for both variants, or statistics over seeds.

Inductor uses its own generator unless `fallback_random` is set; with it, compiled code uses the random
numbers of eager code. The timed code must not have the setting, so a second callable of the same backend
is compiled for the check. The timed code itself is compared with eager code by the means and mean squares
of its results over several seeds. Runs inside the target.
"""

import math
from typing import Any, List, NamedTuple, Optional, Tuple

from torchyard.worker.bench import options
from torchyard.worker.bench.accuracy.tensors import Results, shapes_of, to_plain
from torchyard.worker.bench.variant import VariantRunner

SETTING = "inductor.fallback_random"
DRAWS = 8
SETS = 4
"""Sets of eager draws; their distances from each other define the tolerance."""
FURTHER = 1.6
"""Tolerance as a multiple of the largest squared distance of two sets of eager draws."""
SPREAD = 4.0
"""Tolerance as a multiple of the largest deviation of a set of eager draws from all of them."""
LEAST_NUMBERS = 64
"""Smaller tensors are not compared: their means are too noisy."""


class Differs(NamedTuple):
    """Whether two distributions differ, with a description."""

    wrong: bool
    text: str


def twin_with_fallback(runner: VariantRunner) -> Tuple[Optional[VariantRunner], str]:
    """Return the variant compiled with the random numbers of eager code, or why that fails."""
    reason = options.why_not(SETTING, runner.backend, runner.model.training)
    if reason:
        return None, ""
    chosen = dict(runner.options)
    chosen[SETTING] = True
    try:
        return runner.remade(chosen), ""
    except Exception as error:  # an older torch may lack the setting
        return None, type(error).__name__


def distributions_differ(
    eager: VariantRunner, candidate: VariantRunner, seed: int, place: Any
) -> Differs:
    """Compare means and variances over draws."""
    sets = [_Moments(eager, seed + 100 * number, place) for number in range(1, SETS + 1)]
    other = _Moments(candidate, seed + 50, place)
    if any(one.shapes != other.shapes for one in sets) or not other.shapes:
        return Differs(False, "the shapes of its results are random, too")
    compared = 0
    for group, tensors in other.means.items():
        for index, tensor in enumerate(tensors):
            if tensor.numel() < LEAST_NUMBERS:
                continue
            compared += 1
            reason = _reason(
                tensor,
                other.squares[group][index],
                [one.means[group][index] for one in sets],
                [one.squares[group][index] for one in sets],
            )
            if reason:
                text = "%s %d: %s over %d draws, compared with %d sets of %d draws of eager code"
                return Differs(True, text % (group, index, reason, DRAWS, SETS, DRAWS))
    if not compared:
        return Differs(False, "")
    return Differs(
        False, "means and variances over %d draws agree with those of eager code" % DRAWS
    )


def _reason(mean: Any, square: Any, means: List[Any], squares: List[Any]) -> str:
    pairs = [(one, two) for one in range(SETS) for two in range(one)]
    apart = max(_squared(means[one] - means[two]) for one, two in pairs)
    far = min(_squared(mean - one) for one in means)
    whole = sum(means) / SETS
    size = _squared(whole)
    if not far <= FURTHER * apart + 1e-4 * size:
        return "its mean is %.3g off, that of eager code up to %.3g" % (
            math.sqrt(far),
            math.sqrt(apart),
        )
    if size:
        factors = [float((one * whole).sum()) / size for one in means]
        factor = float((mean * whole).sum()) / size
        if abs(factor - 1) > SPREAD * max(abs(one - 1) for one in factors) + 0.02:
            return "its mean is %.3g times that of eager code" % factor
    variances = [float((s - m * m).clamp(min=0).sum()) for m, s in zip(means, squares)]
    variance = float((square - mean * mean).clamp(min=0).sum())
    usual = sum(variances) / SETS
    if usual <= 1e-12 * size:
        return ""
    logs = [abs(math.log(max(one, 1e-300) / usual)) for one in variances]
    if abs(math.log(max(variance, 1e-300) / usual)) > SPREAD * max(logs) + 0.1:
        return "its variance is %.3g times that of eager code" % (variance / usual)
    return ""


class _Moments:
    """Means and mean squares of results over several seeds."""

    def __init__(self, runner: VariantRunner, seed: int, place: Any) -> None:
        self.means: Any = {}
        self.squares: Any = {}
        self.shapes: Any = None
        for draw in range(DRAWS):
            results = to_plain(runner.results(seed + draw)[0], place)
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


def _squared(numbers: Any) -> float:
    total = float((numbers * numbers).sum())
    return total if math.isfinite(total) else math.inf

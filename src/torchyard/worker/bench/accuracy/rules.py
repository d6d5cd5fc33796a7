"""The rules of the accuracy check: compare each tensor of the candidate with the reference.

The error of a tensor may have no more outliers, no larger norm and no stronger trend than those of correct runs of
the same computation (`noise`), times a small factor. An error that is uniformly larger, without outliers or trend, is
that of a lower precision: less accurate, not wrong. Integers must be equal except where simulated rounding changes them.
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.bench import options
from torchyard.worker.bench.accuracy.tensors import Results, largest_gap, shapes_of, to_plain
from torchyard.worker.bench.accuracy.tolerances import Noise, Profile, Rare, TensorNoise, profile
from torchyard.worker.bench.variant import VariantRunner

NORM_FACTOR = 3.0
SMALL_NORM_FACTOR = 6.0
"""For tensors with fewer than SMALL numbers, whose norm varies more from run to run."""
TREND_FACTOR = 3.0
OUTLIER_FACTOR = 4.0
LEAST_NORM = 0.5
LEAST_TREND = 5.0
"""Lower bounds of the tolerances."""
BITS_LOST = {"float32": 10, "tf32": 4, "float16": 4, "amp-float16": 4, "bfloat16": 2, "amp": 2}
"""Bits that results may lose and still count as less accurate instead of wrong."""
SMALL = 64
"""A tensor with fewer numbers shows no trend; alone it may lose at most SMALL_BITS."""
SMALL_BITS = 6
LESS_THAN_ALL = 0.1
"""Results with a larger relative error are wrong in any precision, unless it is noise."""
MOST_MOVED = 0.5
"""Share of integers above which changes by rounding make a tensor undetermined."""
HALF = {torch.float16, torch.bfloat16}
UNSEEN_SHARE = 0.1
"""Integers that may differ where no run changed them, as a share of those that runs changed."""
LEAST_KNOWN = 0.7
"""Share of those of correct runs that must occur in other runs."""
DEVIATIONS = 6.0
ROW_FACTOR = 1.5
"""Limits for one row, in standard deviations and as a multiple of the largest deviation of a correct run."""
LEAST_RUNS = 4
LEAST_MATCHES = 16
"""Runs and matches in a correct run that are needed to tell."""
GROSS_SHARE = 0.2
"""Share of outliers that no rare effect of rounding explains."""
NAMED = 3
"""Number of tensors listed in a detail."""


class Failure(NamedTuple):
    """Why a tensor is wrong or less accurate."""

    text: str
    wrong: bool
    gross: bool = False
    """Whether the error is too large for any rare effect of rounding."""


class Judgement:
    """Outcome over all tensors; the worst ones decide and are listed."""

    def __init__(self, rounding: str) -> None:
        self.rounding = rounding
        self.failures: List[Failure] = []
        self.compared = 0
        self.both_nan: List[str] = []
        self.undetermined: List[str] = []
        self.max_error = 0.0
        self.candidate_rmse: Optional[float] = None
        self.baseline_rmse: Optional[float] = None
        self.checked = False
        """Whether any number could be checked."""

    @property
    def status(self) -> str:
        """`fail`, `less-accurate`, `unchecked` or `pass`."""
        if any(failure.wrong for failure in self.failures):
            return "fail"
        if self.why_unchecked():
            return "unchecked"
        return "less-accurate" if self.failures else "pass"

    def why_unchecked(self) -> str:
        """Return why the check is inconclusive; empty when it is conclusive."""
        if self.compared == 0:
            return "nothing to compare"
        if self.undetermined:
            return "mostly determined by rounding: " + ", ".join(self.undetermined[:NAMED])
        if not self.checked:
            return "no finite number in the results"
        if self.both_nan:
            return "NaN in both variants: " + ", ".join(self.both_nan[:NAMED])
        return ""

    def record(self) -> Dict[str, Any]:
        """Return the outcome with the fields of `core.comparison.Accuracy`."""
        status = self.status
        if status == "unchecked":
            return {
                "status": status,
                "method": "none",
                "detail": self.why_unchecked(),
                "compared": 0,
            }
        wrong = [failure.text for failure in self.failures if failure.wrong]
        texts = wrong or [failure.text for failure in self.failures]
        more = len(texts) - NAMED
        detail = "; ".join(texts[:NAMED]) + ("; and %d more" % more if more > 0 else "")
        return {
            "status": status,
            "max_error": self.max_error,
            "candidate_rmse": self.candidate_rmse,
            "baseline_rmse": self.baseline_rmse,
            "compared": self.compared,
            "detail": detail,
        }


def judge_results(
    candidate: Results,
    baseline: Results,
    noise: Noise,
    names: Optional[Dict[str, List[str]]] = None,
    same_type: bool = True,
) -> Judgement:
    """Check the candidate's results; with `same_type` they must have the baseline's data types."""
    judgement = Judgement(noise.rounding)
    judge = _Judge(judgement, noise, same_type)
    for group in sorted(set(baseline) | set(candidate)):
        actual, expected = candidate.get(group, []), baseline.get(group, [])
        if len(actual) != len(expected):
            text = "%s: %d tensors instead of %d" % (group, len(actual), len(expected))
            judgement.failures.append(Failure(text, wrong=True))
            continue
        own = (names or {}).get(group, [])
        for index, tensor in enumerate(actual):
            name = own[index] if index < len(own) else "%s %d" % (group, index)
            judge.tensor(group, name, tensor, expected[index], noise.of(group, index))
    judge.finish()
    return judgement


class _Judge:
    def __init__(self, judgement: Judgement, noise: Noise, same_type: bool) -> None:
        self.judgement = judgement
        self.noise = noise
        self.same_type = same_type
        self.less: List[Any] = []
        """Name, profile, lost factor and limits of tensors that appear less accurate."""

    def wrong(self, text: str, gross: bool = False) -> None:
        self.judgement.failures.append(Failure(text, wrong=True, gross=gross))

    def tensor(self, group: str, name: str, actual: Any, baseline: Any, noise: TensorNoise) -> None:
        self.judgement.compared += 1
        if actual.shape != baseline.shape:
            if not noise.reshaped:
                shapes = (name, tuple(actual.shape), tuple(baseline.shape))
                self.wrong("%s: shape %s instead of %s" % shapes)
            else:
                self.judgement.undetermined.append(name)
        elif not self._fits(actual.dtype, baseline.dtype):
            self.wrong("%s: %s instead of %s" % (name, actual.dtype, baseline.dtype))
        elif not actual.numel():
            self.judgement.checked = True
        elif actual.is_floating_point():
            self._floats(group, name, actual, baseline, noise)
        else:
            self._integers(name, actual, baseline, noise)

    def _fits(self, actual: Any, expected: Any) -> bool:
        if actual is expected:
            return True
        short = HALF | {torch.float32}
        return not self.same_type and actual in short and expected in short

    def _integers(self, name: str, actual: Any, baseline: Any, noise: TensorNoise) -> None:
        differs = actual != baseline
        unseen = 0
        if noise.moved is not None and bool(differs.any()):
            share = float(noise.moved.double().mean())
            known = _known(actual, [baseline, *noise.variants], noise.moved)
            if known is not None and known.unlikely:
                text = "%s: %.2g %% of the integers that rounding changes occur in correct runs"
                seen = (name, 100 * known.actual, 100 * known.honest)
                self.wrong((text + ", where %.2g %% of those of another correct run do") % seen)
                return
            if known is None and share > MOST_MOVED:
                self.judgement.undetermined.append(name)
                return
            differs = differs & ~noise.moved
            unseen = int(UNSEEN_SHARE * share * actual.numel())
        self.judgement.checked = True
        count = int(differs.sum())
        if count > unseen:
            kind = "booleans" if actual.dtype is torch.bool else "integers"
            text = "%s: %d of %d %s differ" % (name, count, actual.numel(), kind)
            self.wrong(text + _first_difference(differs, actual, baseline))

    def _floats(
        self, group: str, name: str, actual: Any, baseline: Any, noise: TensorNoise
    ) -> None:
        mismatch = _unbounded_mismatch(actual, baseline, noise)
        if mismatch:
            self.wrong("%s: %s" % (name, mismatch))
            return
        nan = int((torch.isnan(actual) & torch.isnan(baseline)).sum())
        if nan:
            self.judgement.both_nan.append("%s (%d of %d)" % (name, nan, actual.numel()))
        measured = profile(actual, noise.scale, self.noise.on)
        if not measured.finite:
            if not nan:
                self.judgement.checked = True  # infinities that agree
            return
        judgement = self.judgement
        judgement.checked = True
        judgement.max_error = max(judgement.max_error, largest_gap(actual, baseline, self.noise.on))
        judgement.candidate_rmse = max(judgement.candidate_rmse or 0.0, measured.rms)
        if self.noise.exact:
            own = noise.baseline_rms
            judgement.baseline_rmse = max(judgement.baseline_rmse or 0.0, own)
        rare = self.noise.rare(group)
        limits = Limits(noise.profiles, rare, measured.finite, _slice_size(actual.shape))
        reason = limits.exceeded(measured)
        if not reason:
            return
        lost = max(1.0, measured.typical / limits.typical)
        wider = profile(actual, noise.scale, self.noise.on, factor=1.2 * lost)
        spread = not limits.exceeded(wider) and wider.trend <= limits.trend_of_rounding
        if not spread or not self._may_lose(measured, lost):
            gross = measured.outliers > max(1, GROSS_SHARE * measured.finite)
            self.wrong(limits.describe(name, reason, measured), gross=gross)
        else:
            self.less.append((name, measured, lost, limits))

    def _may_lose(self, seen: Profile, lost: float) -> bool:
        if lost > 2.0 ** BITS_LOST[self.noise.rounding]:
            return False
        return seen.rms <= max(LESS_THAN_ALL * seen.reference_rms, NORM_FACTOR * seen.scale_rms)

    def finish(self) -> None:
        """Report small tensors as less accurate only as far as larger ones are, too."""
        supported = max(
            (lost for _, seen, lost, _ in self.less if seen.finite >= SMALL), default=1.0
        )
        for name, seen, lost, limits in self.less:
            text = limits.describe(name, "norm", seen)
            alone = lost > 2.0**SMALL_BITS and lost > 8 * supported and seen.finite < SMALL
            self.judgement.failures.append(Failure(text, wrong=alone))


class Limits:
    """Limits of a tensor's error, from the errors of correct runs."""

    def __init__(self, honest: List[Profile], rare: Rare, numbers: int, slice_size: int) -> None:
        factor = NORM_FACTOR if numbers >= SMALL else SMALL_NORM_FACTOR
        self.norm = factor * max([LEAST_NORM] + [one.norm for one in honest])
        self.trend = TREND_FACTOR * max(LEAST_TREND, rare.trend)
        self.trend_of_rounding = max(LEAST_TREND, 1.5 * rare.trend)
        """Limit for a large error that is due to rounding alone."""
        outliers = max([rare.share * numbers] + [one.outliers for one in honest])
        # A ReLU that switches on changes a whole row or column of a weight's gradient.
        self.outliers = OUTLIER_FACTOR * outliers + 2 * slice_size if outliers else 0
        own = max([0.0] + [one.largest_outlier for one in honest])
        scale = max([0.0] + [one.scale_rms for one in honest])
        self.largest = OUTLIER_FACTOR * max(own, rare.largest * scale)
        self.typical = max([LEAST_NORM] + [one.typical for one in honest])

    def exceeded(self, seen: Profile) -> str:
        """Return the exceeded limit; empty when there is none."""
        if seen.outliers > self.outliers or seen.largest_outlier > self.largest:
            return "outliers"
        if seen.norm > self.norm:
            return "norm"
        return "trend" if seen.trend > self.trend else ""

    def describe(self, name: str, reason: str, seen: Profile) -> str:
        """Describe the error: absolute, relative, and the limit."""
        relative = seen.rms / seen.reference_rms if seen.reference_rms else math.inf
        allowed = self.norm * seen.scale_rms
        text = "%s: error %.3g (relative %.2g), allowed %.3g" % (name, seen.rms, relative, allowed)
        if reason == "outliers":
            text = "%s: %d of %d numbers are off by up to %.3g, more than rounding explains" % (
                name,
                seen.outliers,
                seen.finite,
                seen.largest_outlier,
            )
            return text + " (error %.3g, relative %.2g, allowed %.3g)" % (
                seen.rms,
                relative,
                allowed,
            )
        if reason == "trend":
            text += ", and systematic (on average %.6g times the reference)" % seen.factor
        return text


def _slice_size(shape: Any) -> int:
    """Return the size of a row or a column, whichever is larger; 1 for a vector."""
    if len(shape) < 2:
        return 1
    total = math.prod(shape)
    return max(total // shape[0], total // shape[1])


def _unbounded_mismatch(actual: Any, baseline: Any, noise: TensorNoise) -> str:
    """Describe differing infinities and NaN, except where rounding changes them."""
    reference = noise.scale.reference
    same = (actual == baseline) | (torch.isnan(actual) & torch.isnan(baseline))
    finite = torch.isfinite(actual) & torch.isfinite(reference)
    differs = ~(same | finite)
    if noise.moved is not None:
        differs = differs & ~noise.moved
    count = int(differs.sum())
    if not count:
        return ""
    return "%d of %d numbers are NaN or infinite in one variant only" % (count, actual.numel())


class Known(NamedTuple):
    """Which of the integers changed by rounding have a value that occurs in another run."""

    actual: float
    """Share of those of the candidate."""
    honest: float
    """Mean share of those of correct runs."""
    deviation: float
    """Largest deviation of a row of the candidate below that mean, in standard deviations."""
    honest_deviation: float

    @property
    def unlikely(self) -> bool:
        """Whether the candidate's values are far less known than those of correct runs, in all or in one row."""
        limit = max(DEVIATIONS, ROW_FACTOR * self.honest_deviation)
        return self.actual < LEAST_KNOWN * self.honest or self.deviation > limit


def _known(actual: Any, runs: List[Any], moved: Any) -> Optional[Known]:
    """Compare the integers that rounding changes with those of correct runs; None if that says too little.

    The order of equal numbers differs between runs, but only among the indices of these numbers.
    """

    def occur(values: Any, others: List[Any]) -> Any:
        return torch.stack([values == other for other in others]).any(0) & moved

    def deviation(known: Any) -> float:
        found, count = (one.double().reshape(rows).sum(-1) for one in (known, moved))
        spread = (honest * (1 - honest) * count).sqrt().clamp(min=1.0)
        return float(((honest * count - found) / spread).max())

    numbers = int(moved.sum())
    mine = occur(actual, runs)
    if not numbers or bool((mine == moved).all()):
        return Known(1.0, 1.0, 0.0, 0.0) if numbers else None
    others = [occur(run, [one for one in runs if one is not run]) for run in runs[1:]]
    honest = sum(float(one.double().sum()) for one in others) / max(1, len(others)) / numbers
    if len(runs) < LEAST_RUNS or honest * numbers < LEAST_MATCHES:
        return None
    rows = (-1, actual.shape[-1] if actual.dim() else 1)
    own = max(deviation(one) for one in others)
    return Known(float(mine.double().sum()) / numbers, honest, deviation(mine), own)


def _first_difference(differs: Any, actual: Any, baseline: Any) -> str:
    place = torch.nonzero(differs)[0].tolist()
    value, expected = (t[tuple(place)].item() for t in (actual, baseline))
    return ", the first at %s: %s instead of %s" % (place, value, expected)


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

"""Error statistics of each tensor of a result, in units of its rounding error."""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchyard.worker.bench.accuracy.tensors import Results, rms_between

BLOCK = 1 << 22
"""Number of elements processed at a time."""
OUTLIER = 16.0
"""Errors above this multiple of the rounding scale are outliers."""
OWN_WEIGHT = 4.0
"""Weight, in runs, of the neighbours of a number in its rounding scale."""
HARMLESS_BIAS = 0.25
"""Systematic deviation, as a share of the scale, that is indistinguishable from rounding."""
SMALLEST_SLICE = 4
SAMPLE = 1 << 16
"""Numbers of which the typical error is taken."""


class Profile(NamedTuple):
    """Statistics of one tensor's error."""

    finite: int
    outliers: int
    largest_outlier: float
    norm: float
    trend: float
    rms: float
    """Root mean square error."""
    reference_rms: float
    scale_rms: float
    largest: float
    typical: float
    """Median of error over scale, over numbers of a sample with a nonzero error."""
    factor: float
    """Mean ratio to the reference: 1 without a trend."""


class Scale:
    """Rounding error of the numbers of one tensor: errors accumulated over runs."""

    def __init__(self, reference: Any, epsilon: float) -> None:
        self.reference = reference
        self.epsilon = epsilon
        self.errors = torch.zeros(reference.shape, dtype=torch.float32, device=reference.device)
        """Square roots of the sums of squares, which themselves could overflow float32."""
        self.runs = 0

    def add(self, numbers: Any) -> None:
        """Add the error of a run."""
        flat, right = numbers.reshape(-1), self.reference.reshape(-1)
        errors = self.errors.view(-1)
        for start in range(0, flat.numel(), BLOCK):
            end = start + BLOCK
            error = _finite(flat[start:end].double() - right[start:end].double())
            errors[start:end] = torch.hypot(errors[start:end].double(), error).float()
        self.runs += 1

    def widened(self, numbers: Any, other: Any, factor: float) -> "Scale":
        """Return the scale with the difference of two tensors, times a factor, added to every run."""
        scale = Scale(self.reference, self.epsilon)
        scale.runs = max(1, self.runs)
        gap = math.sqrt(scale.runs) * factor * _finite(numbers.double() - other.double())
        scale.errors = torch.hypot(self.errors.double(), gap).float()
        return scale


def assumed_scale(reference: Any, epsilon: float, steps: float) -> Scale:
    """Return a scale of `steps` rounding steps, for tensors without measured runs."""
    scale = Scale(reference, epsilon)
    scale.errors = (steps * epsilon * _finite(reference.double()).abs()).float()
    scale.runs = 1
    return scale


def profile(numbers: Any, scale: Scale, on: Any, factor: float = 1.0) -> Profile:
    """Return the error statistics of `numbers` for the scale times `factor`, over finite numbers."""
    total = _Totals()
    flat = [t.reshape(-1) for t in (numbers, scale.reference, scale.errors)]
    for start, shape in _blocks(tuple(numbers.shape)):
        end = start + math.prod(shape)
        values, right, errors = (t[start:end].to(on).double().reshape(shape) for t in flat)
        counts = torch.isfinite(values - right)
        finite = int(counts.sum())
        if finite:
            masked = None if finite == values.numel() else counts
            total.add(values, right, errors * errors, finite, masked, scale, factor)
    return total.profile()


class _Totals:
    def __init__(self) -> None:
        self.finite = self.outliers = 0
        self.largest_outlier = self.trend = self.largest = 0.0
        self.sums = [0.0, 0.0, 0.0, 0.0, 0.0]
        self.typical: List[Tuple[float, int]] = []

    def add(
        self,
        values: Any,
        right: Any,
        squares: Any,
        finite: int,
        counts: Optional[Any],
        scale: Scale,
        factor: float,
    ) -> None:
        """Add a block; `counts` are its finite numbers, None if all are. Waits once for a GPU."""
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        right = right if counts is None else torch.where(counts, right, zero)
        error = values - right
        width = factor * _width(squares, right, scale)
        if counts is not None:
            error, width = torch.where(counts, error, zero), torch.where(counts, width, zero)
        limit = (OUTLIER + 2 * max(0.0, math.log10(values.numel()) - 6)) * width
        size = error.abs()
        outside = size > limit
        clipped = torch.maximum(torch.minimum(error, limit), -limit)
        least = width.clamp(min=1e-300)
        ratio = clipped / least
        outliers, largest_outlier, largest, trend, typical, nonzero, *sums = torch.stack(
            [
                outside.sum().double(),
                torch.where(outside, size, zero).max(),
                size.max(),
                _trend(clipped, right, width),
                *_median_of_some(size, least),
                (ratio * ratio).sum(),
                (error * error).sum(),
                (right * right).sum(),
                (width * width).sum(),
                (error * right).sum(),
            ]
        ).tolist()
        self.outliers += int(outliers)
        self.largest_outlier = max(self.largest_outlier, largest_outlier)
        self.largest = max(self.largest, largest)
        self.finite += finite
        self.sums = [total + part for total, part in zip(self.sums, sums)]
        if nonzero:
            self.typical.append((typical, values.numel()))
        self.trend = max(self.trend, trend)

    def profile(self) -> Profile:
        count = max(1, self.finite)
        norm, rms, reference, width = (math.sqrt(total / count) for total in self.sums[:4])
        squares = self.sums[2]
        return Profile(
            finite=self.finite,
            outliers=self.outliers,
            largest_outlier=self.largest_outlier,
            norm=norm,
            trend=self.trend,
            rms=rms,
            reference_rms=reference,
            scale_rms=width,
            largest=self.largest,
            typical=_weighted_median(self.typical),
            factor=1 + self.sums[4] / squares if squares else 1.0,
        )


def _width(squares: Any, right: Any, scale: Scale) -> Any:
    """Return the rounding scale of each number of a block."""
    runs = max(1, scale.runs)
    shared = _shared(squares / runs, right)
    own = (squares + OWN_WEIGHT * shared) / (runs + OWN_WEIGHT)
    least = (0.3 * scale.epsilon * right) ** 2
    return (own + least).sqrt() + 1e-45


def _shared(squares: Any, right: Any) -> Any:
    """Return the mean squared error of each number's neighbours: the product over its slices.

    A vector has no slices: its numbers use the mean of all, limited by the typical relative error, so
    that errors of small numbers are not hidden by large ones.
    """
    mean = squares.mean()
    if squares.dim() < 2:
        relative = (squares / (right * right).clamp(min=1e-300)).median()
        return torch.minimum(mean, 64 * relative * right * right)
    product = torch.ones_like(squares)
    for axis in range(squares.dim()):
        others = [dim for dim in range(squares.dim()) if dim != axis]
        marginal = squares.mean(dim=others, keepdim=True)
        product = product * (marginal / mean.clamp(min=1e-300))
    return product * mean


def _trend(error: Any, right: Any, width: Any) -> Any:
    """Return the strongest systematic deviation, over all numbers and over each slice."""
    deviations = []
    for weights in (right, None):
        weighed = error if weights is None else error * weights
        spread = width if weights is None else (width * weights).abs()
        squares = spread * spread
        for axis in range(-1, right.dim()):
            if axis < 0:
                dims = list(range(right.dim()))
            else:
                dims = [dim for dim in range(right.dim()) if dim != axis]
                if not dims or right.numel() // right.shape[axis] < SMALLEST_SLICE:
                    continue
            total = weighed.sum(dim=dims).abs() - HARMLESS_BIAS * spread.sum(dim=dims)
            deviation = squares.sum(dim=dims).sqrt().clamp(min=1e-300)
            deviations.append((total / deviation).max())
    return torch.stack(deviations).max().clamp(min=0.0)


def _median_of_some(size: Any, width: Any) -> Tuple[Any, Any]:
    """Return the median of error over scale and how many it is of: nonzero ones of a sample.

    The sample is random: one at regular distances could consist of a single column.
    """
    sizes, widths = size.reshape(-1), width.reshape(-1)
    if sizes.numel() > SAMPLE:
        chance = torch.Generator().manual_seed(sizes.numel())
        chosen = torch.randint(sizes.numel(), (SAMPLE,), generator=chance).to(sizes.device)
        sizes, widths = sizes[chosen], widths[chosen]
    ratio = torch.where(sizes > 0, sizes / widths, torch.full_like(sizes, math.nan))
    return torch.nan_to_num(ratio.nanmedian()), (sizes > 0).sum().double()


def _blocks(shape: Sequence[int]) -> Iterator[Tuple[int, Tuple[int, ...]]]:
    """Yield start and shape (one to three axes) of the blocks of a tensor."""
    shape = [int(size) for size in shape]
    total = math.prod(shape)
    if not total:
        return
    if len(shape) < 2:
        for start in range(0, total, BLOCK):
            yield start, (min(BLOCK, total - start),)
        return
    first, second = shape[0], shape[1]
    while first < total and total // first > BLOCK and len(shape) > 2:
        shape = [shape[0] * shape[1], *shape[2:]]
        first, second = shape[0], shape[1]
    row = total // first
    if row > BLOCK:
        for start in range(0, total, BLOCK):
            yield start, (min(BLOCK, total - start),)
        return
    rows = max(1, BLOCK // row)
    for begin in range(0, first, rows):
        count = min(rows, first - begin)
        axes = (count, row) if len(shape) < 3 else (count, second, row // second)
        yield begin * row, axes


def _finite(numbers: Any) -> Any:
    return torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)


def _weighted_median(parts: List[Tuple[float, int]]) -> float:
    half = sum(count for _, count in parts) / 2
    for value, count in sorted(parts):
        half -= count
        if half <= 0:
            return value
    return 0.0


EPSILON = {
    "float32": 2.0**-23,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "amp": 2.0**-8,
    "amp-float16": 2.0**-11,
}
"""Relative rounding error; `tf32` is float32 with products of operands rounded to ten bits."""
ASSUMED_STEPS = {"float32": 64.0}
"""Assumed rounding steps where no error could be measured; 4 for short formats."""
MOST_OF_BASELINE = 8.0
"""Largest norm of the baseline's error that rounding explains, in units of simulated rounding."""
REFERENCE_OFF = 32.0
"""A reference is rejected when two runs differ from it by this multiple of their mutual distance."""
AMPLIFIED = 4.0
"""Ratio of the noise of an amplified run to that of a normal one."""


class Rare(NamedTuple):
    """Rare errors of correct runs, such as a ReLU that is active in one run and not in another."""

    share: float
    """Largest share of outliers among the numbers of a group in one run."""
    largest: float
    """Largest outlier, in units of the scale of its tensor."""
    trend: float
    """Strongest trend."""


class TensorNoise:
    """The noise of one tensor."""

    def __init__(self, reference: Any, epsilon: float) -> None:
        self.scale = Scale(reference, epsilon)
        self.profiles: List[Profile] = []
        self.moved: Optional[Any] = None
        """Integers that rounding changes, and numbers whose finiteness it changes."""
        self.variants: List[Any] = []
        """The integers of the runs in which rounding changed some."""
        self.reshaped = False
        self.baseline_rms = 0.0
        self.baseline_off = False
        """Whether the baseline's own error is larger than rounding explains."""


class Noise:
    """The noise of all tensors; `exact` are float64 results, None if the baseline is the reference."""

    def __init__(
        self, baseline: Results, exact: Optional[Results], rounding: str, on: Any = "cpu"
    ) -> None:
        self.rounding = rounding
        self.on = on
        self.exact = exact is not None
        self.runs = 0
        self.assumed = ""
        """Why the noise is assumed instead of measured."""
        self._baseline = baseline
        self._tensors: Dict[Tuple[str, int], TensorNoise] = {}
        reference = baseline if exact is None else exact
        for group, tensors in reference.items():
            for index, tensor in enumerate(tensors):
                noise = TensorNoise(tensor, EPSILON[rounding])
                self._tensors[group, index] = noise
                own = baseline[group][index]
                if exact is not None and _comparable(own, tensor):
                    noise.baseline_rms = rms_between(own, tensor, on)

    def of(self, group: str, index: int) -> TensorNoise:
        """Return the noise of a tensor."""
        return self._tensors[group, index]

    def rare(self, group: str) -> Rare:
        """Return the rare errors of a group: they may occur in any of its tensors."""
        every = [noise.profiles for (own, _), noise in self._tensors.items() if own == group]
        every = [profiles for profiles in every if profiles]
        share = largest = trend = 0.0
        for run in zip(*every):
            numbers = sum(one.finite for one in run)
            share = max(share, sum(one.outliers for one in run) / max(1, numbers))
            trend = max([trend] + [one.trend for one in run])
            for one in run:
                if one.outliers and one.scale_rms:
                    largest = max(largest, one.largest_outlier / one.scale_rms)
        return Rare(share, largest, trend)

    def reference_is_off(self, one: Results, other: Results) -> bool:
        """Whether two runs agree far better with each other than with float64, which may compute something else."""
        for noise, tensor, _ in self._each(one):
            reference = noise.scale.reference
            if not _comparable(tensor, reference):
                continue
            error = rms_between(tensor, reference, self.on)
            for twin, again, _ in self._each(other):
                if twin is noise and again.shape == tensor.shape:
                    spread = rms_between(tensor, again, self.on)
                    least = EPSILON[self.rounding] * rms_between(reference, 0 * reference, self.on)
                    if error > REFERENCE_OFF * (spread + least):
                        return True
        return False

    def add_to_scale(self, results: Results) -> None:
        """Add the errors of a run to the scale."""
        for noise, tensor, baseline in self._each(results):
            if _comparable(tensor, noise.scale.reference):
                noise.scale.add(tensor)
            self._mark(noise, tensor, baseline)
        self.runs += 1

    def add_honest(self, results: Results, amplified: bool = False) -> None:
        """Add the errors of a run to those that a candidate may have."""
        for noise, tensor, baseline in self._each(results):
            if _comparable(tensor, noise.scale.reference):
                factor = AMPLIFIED if amplified else 1.0
                noise.profiles.append(profile(tensor, noise.scale, self.on, factor))
            self._mark(noise, tensor, baseline)
        self.runs += 1

    def add_baseline(self) -> None:
        """Add the baseline's own error, for tensors where rounding explains it."""
        for noise, tensor, _ in self._each(self._baseline):
            if not _comparable(tensor, noise.scale.reference):
                continue
            measured = profile(tensor, noise.scale, self.on)
            noise.baseline_off = measured.norm > MOST_OF_BASELINE
            if not noise.baseline_off:
                noise.scale.add(tensor)
                noise.profiles.append(profile(tensor, noise.scale, self.on))

    @property
    def baseline_off(self) -> bool:
        """Whether the baseline's error is larger than rounding explains in some tensor."""
        return any(noise.baseline_off for noise in self._tensors.values())

    @property
    def baseline_rmse(self) -> float:
        """The largest root mean square error of the baseline in a tensor."""
        return max((noise.baseline_rms for noise in self._tensors.values()), default=0.0)

    def largest_baseline_error(self) -> float:
        """The largest relative error of the baseline in a tensor."""
        largest = 0.0
        for noise in self._tensors.values():
            reference = noise.scale.reference
            if noise.baseline_rms and reference.is_floating_point():
                size = rms_between(reference, torch.zeros_like(reference), self.on)
                largest = max(largest, noise.baseline_rms / size if size else math.inf)
        return largest

    def about_baseline(self) -> "Noise":
        """Return the same noise around the baseline's results instead of the reference."""
        other = Noise(self._baseline, None, self.rounding, self.on)
        for key, noise in self._tensors.items():
            moved = other._tensors[key]
            moved.scale.errors, moved.scale.runs = noise.scale.errors, noise.scale.runs
            moved.profiles, moved.moved = noise.profiles, noise.moved
            moved.reshaped, moved.baseline_rms = noise.reshaped, noise.baseline_rms
            moved.variants = noise.variants
        return other

    def assume(self, reason: str) -> None:
        """Use a scale from the magnitude of the numbers, without runs."""
        self.assumed = reason
        for noise in self._tensors.values():
            reference = noise.scale.reference
            if reference.is_floating_point():
                steps = ASSUMED_STEPS.get(self.rounding, 4.0)
                noise.scale = assumed_scale(reference, EPSILON[self.rounding], steps)

    def widened(self, first: Results, second: Results, factor: float) -> "Noise":
        """Return the noise with the difference of two runs of the baseline added."""
        wider = Noise({}, {}, self.rounding, self.on)
        wider.exact = self.exact
        for key, noise in self._tensors.items():
            group, index = key
            one, other = first[group][index], second[group][index]
            added = TensorNoise(noise.scale.reference, EPSILON[self.rounding])
            added.profiles, added.reshaped = list(noise.profiles), noise.reshaped
            added.moved, added.baseline_rms = noise.moved, noise.baseline_rms
            added.variants = list(noise.variants)
            if one.shape != other.shape:
                added.reshaped = True
            elif one.is_floating_point():
                added.scale = noise.scale.widened(one, other, factor)
            else:
                added.moved = _either(noise.moved, one != other)
                added.variants.append(other)
            wider._tensors[key] = added
        return wider

    def _each(self, results: Results) -> Any:
        for (group, index), noise in self._tensors.items():
            tensors = results.get(group, [])
            baseline = self._baseline[group][index]
            if index < len(tensors) and tensors[index].shape == baseline.shape:
                yield noise, tensors[index], baseline
            else:
                noise.reshaped = True

    def _mark(self, noise: TensorNoise, tensor: Any, baseline: Any) -> None:
        if tensor.is_floating_point():
            differs = torch.isfinite(tensor) != torch.isfinite(baseline)
            if not bool(differs.any()):
                return
        else:
            differs = tensor != baseline
            if bool(differs.any()):
                noise.variants.append(tensor)
        noise.moved = _either(noise.moved, differs)


def _either(one: Optional[Any], other: Any) -> Any:
    return other if one is None else one | other


def _comparable(tensor: Any, reference: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.shape == reference.shape)

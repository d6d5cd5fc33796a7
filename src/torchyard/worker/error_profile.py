"""Statistics of the error of one tensor, in units of the error that rounding has. Runs inside the target.

A tensor is looked at in blocks of bounded size, each as up to three axes. The scale of rounding of a
number combines its own errors in a few runs with those of its row and column, because a few runs
estimate the scale of a single number badly. A profile of an error says

outliers    how many numbers are off by more than any rounding, and the largest of these errors
norm        root mean square of error over scale, outliers clipped
trend       the largest systematic deviation: the error projected on the reference (a factor) and on
            ones (an offset), over the whole block and over each slice along each axis, in standard
            deviations of independent errors, beyond a quarter of the scale

Whether a profile is good is told by comparing it with those of runs that are known to be honest.
"""

import math
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import torch

BLOCK = 1 << 22
"""Numbers that are looked at at a time."""
OUTLIER = 16.0
"""Times the scale of rounding."""
OWN_WEIGHT = 4.0
"""Runs that the neighbours of a number count for in its scale."""
HARMLESS_BIAS = 0.25
"""Of the scale: a systematic deviation that nobody can tell from rounding."""
SMALLEST_SLICE = 4


class Profile(NamedTuple):
    """Statistics of one tensor's error."""

    finite: int
    outliers: int
    largest_outlier: float
    norm: float
    trend: float
    rms: float
    """Root mean square of the error itself."""
    reference_rms: float
    scale_rms: float
    largest: float
    typical: float
    """Median of error over scale, of the numbers that have an error."""
    factor: float
    """That the numbers are on average off by: 1 when there is no trend."""


class Scale:
    """How far rounding moves the numbers of one tensor: squares of errors, summed over runs."""

    def __init__(self, reference: Any, epsilon: float) -> None:
        self.reference = reference
        self.epsilon = epsilon
        self.errors = torch.zeros(reference.shape, dtype=torch.float32, device=reference.device)
        """Roots of the sums: squares would leave the range of float32."""
        self.runs = 0

    def add(self, numbers: Any) -> None:
        """Count the error of a run."""
        flat, right = numbers.reshape(-1), self.reference.reshape(-1)
        errors = self.errors.view(-1)
        for start in range(0, flat.numel(), BLOCK):
            end = start + BLOCK
            error = _finite(flat[start:end].double() - right[start:end].double())
            errors[start:end] = torch.hypot(errors[start:end].double(), error).float()
        self.runs += 1

    def widened(self, numbers: Any, other: Any, factor: float) -> "Scale":
        """The same with the difference of two tensors, times a factor, in every run."""
        scale = Scale(self.reference, self.epsilon)
        scale.runs = max(1, self.runs)
        gap = math.sqrt(scale.runs) * factor * _finite(numbers.double() - other.double())
        scale.errors = torch.hypot(self.errors.double(), gap).float()
        return scale


def assumed_scale(reference: Any, epsilon: float, steps: float) -> Scale:
    """A scale of so many rounding steps of a number and its neighbours, where nothing was measured."""
    scale = Scale(reference, epsilon)
    scale.errors = (steps * epsilon * _finite(reference.double()).abs()).float()
    scale.runs = 1
    return scale


def profile(numbers: Any, scale: Scale, on: Any, factor: float = 1.0) -> Profile:
    """Statistics of the error of `numbers` with the scale times `factor`, over all finite numbers."""
    total = _Totals()
    flat = [t.reshape(-1) for t in (numbers, scale.reference, scale.errors)]
    for start, shape in _blocks(tuple(numbers.shape)):
        end = start + math.prod(shape)
        values, right, errors = (t[start:end].to(on).double().reshape(shape) for t in flat)
        counts = torch.isfinite(right) & torch.isfinite(values)
        if bool(counts.any()):
            total.add(values, right, errors**2, counts, scale, factor)
    return total.profile()


class _Totals:
    def __init__(self) -> None:
        self.finite = self.outliers = 0
        self.largest_outlier = self.trend = self.largest = 0.0
        self.sums = [0.0, 0.0, 0.0, 0.0, 0.0]
        self.typical: List[Tuple[float, int]] = []

    def add(
        self, values: Any, right: Any, squares: Any, counts: Any, scale: Scale, factor: float
    ) -> None:
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        right = torch.where(counts, right, zero)
        error = torch.where(counts, values - right, zero)
        width = torch.where(counts, factor * _width(squares, right, scale), zero)
        number = int(counts.sum())
        limit = (OUTLIER + 2 * max(0.0, math.log10(values.numel()) - 6)) * width
        size = error.abs()
        outside = size > limit
        clipped = torch.where(outside, limit * error.sign(), error)
        ratio = clipped / width.clamp(min=1e-300)
        sizes = (size / width.clamp(min=1e-300))[error != 0]
        outliers, largest_outlier, largest, *sums = torch.stack(
            [
                outside.sum().double(),
                torch.where(outside, size, zero).max(),
                size.max(),
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
        self.finite += number
        self.sums = [total + part for total, part in zip(self.sums, sums)]
        if sizes.numel():
            self.typical.append((float(sizes.median()), int(sizes.numel())))
        self.trend = max(self.trend, _trend(clipped, right, width))

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
    """The scale of rounding of each number of a block."""
    runs = max(1, scale.runs)
    shared = _shared(squares / runs, right)
    own = (squares + OWN_WEIGHT * shared) / (runs + OWN_WEIGHT)
    least = (0.3 * scale.epsilon * right) ** 2
    return (own + least).sqrt() + 1e-45


def _shared(squares: Any, right: Any) -> Any:
    """Mean squares of a number's neighbours: of its slices along all axes, as a product.

    The numbers of a vector have no slices. Theirs is the mean of all, but no more than the typical
    relative error allows: small numbers must not hide behind large ones.
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


def _trend(error: Any, right: Any, width: Any) -> float:
    largest = 0.0
    for weights in (right, torch.ones_like(right)):
        weighed = error * weights
        spread = width * weights
        for axis in range(-1, right.dim()):
            if axis < 0:
                dims = list(range(right.dim()))
            else:
                dims = [dim for dim in range(right.dim()) if dim != axis]
                if not dims or right.numel() // right.shape[axis] < SMALLEST_SLICE:
                    continue
            total = weighed.sum(dim=dims).abs() - HARMLESS_BIAS * spread.abs().sum(dim=dims)
            deviation = (spread * spread).sum(dim=dims).sqrt().clamp(min=1e-300)
            largest = max(largest, float((total / deviation).max()))
    return largest


def _blocks(shape: Sequence[int]) -> Iterator[Tuple[int, Tuple[int, ...]]]:
    """Start and shape (one to three axes) of the blocks of a tensor."""
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

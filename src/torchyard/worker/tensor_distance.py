"""How far tensors are from each other, over everything a model may return. Runs inside the target.

Arithmetic is done in float64 and piece by piece, on the device that is given: results of several GB
are compared on a GPU even when they must be kept on the CPU.
"""

import math
from typing import Any, Dict, Iterator, List, Tuple

import torch

Results = Dict[str, List[Any]]
"""Tensors of one iteration by kind: output, loss, gradient, buffer, parameter."""
PIECE = 1 << 22
"""Numbers that are compared at a time."""


def to_plain(results: Results, place: Any = "cpu") -> Results:
    """The same in one place, each tensor in a form that every check understands."""
    return {
        group: [plain(tensor, place) for tensor in tensors] for group, tensors in results.items()
    }


def place_for(results: Results) -> Any:
    """Where results are kept: on their GPU when there is room for all of them, else on the CPU."""
    tensors = [tensor for group in results.values() for tensor in group]
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if len(devices) != 1:
        return torch.device("cpu")
    (device,) = devices
    # Two or three runs, another seed, float64 at twice the size, the candidate's, simulated runs with
    # their scale, and copies.
    needed = 20 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free = torch.cuda.mem_get_info(device)[0]
    return device if needed < free else torch.device("cpu")


def plain(tensor: Any, place: Any = "cpu") -> Any:
    """In that place, dense, and complex numbers as pairs."""
    tensor = tensor.detach().to(place)
    if getattr(tensor, "is_nested", False):
        tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def shapes_of(results: Results) -> Dict[str, List[Any]]:
    """Shapes by group, to tell whether two results can be compared at all."""
    return {group: [tuple(t.shape) for t in tensors] for group, tensors in results.items()}


def pieces(on: Any, *tensors: Any) -> Iterator[Tuple[Any, ...]]:
    """The same numbers of each tensor, some at a time, in float64 on that device."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(one[start : start + PIECE].to(on).double() for one in flat)


def largest_gap(one: Any, other: Any, on: Any = "cpu") -> float:
    """The largest difference of two tensors over all finite numbers."""
    largest = 0.0
    for first, second in pieces(on, one, other):
        gap = (first - second).abs()
        gap = gap[torch.isfinite(gap)]
        largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
    return largest


def rms_between(one: Any, other: Any, on: Any = "cpu") -> float:
    """Root mean square of the difference of two tensors over all finite numbers."""
    total, count = 0.0, 0
    for first, second in pieces(on, one, other):
        gap = first - second
        gap = gap[torch.isfinite(gap)]
        total, count = total + float((gap * gap).sum()), count + int(gap.numel())
    return math.sqrt(total / count) if count else 0.0


def same_bits(left: Results, right: Results) -> bool:
    """Whether two results are equal, types included; NaN is equal to nothing."""
    return shapes_of(left) == shapes_of(right) and all(
        one.dtype is other.dtype and torch.equal(one, other)
        for group, tensors in left.items()
        for one, other in zip(tensors, right[group])
    )


def relative_distance(one: Results, reference: Results) -> float:
    """Root of the sum of squares of the differences over that of the reference, over all tensors."""
    gaps = sizes = 0.0
    for group, tensors in reference.items():
        for tensor, right in zip(one[group], tensors):
            if right.is_floating_point():
                for first, second in pieces(right.device, tensor, right):
                    gap = torch.nan_to_num(first - second, nan=0.0, posinf=0.0, neginf=0.0)
                    size = torch.nan_to_num(second, nan=0.0, posinf=0.0, neginf=0.0)
                    gaps += float((gap * gap).sum())
                    sizes += float((size * size).sum())
    return math.sqrt(gaps / sizes) if sizes else 0.0


def largest_difference(left: Results, right: Results, on: Any = "cpu") -> float:
    """Over all finite numbers; infinite when the two do not even have the same shapes."""
    if shapes_of(left) != shapes_of(right):
        return math.inf
    largest = 0.0
    for group, tensors in left.items():
        for one, other in zip(tensors, right[group]):
            if torch.equal(one, other):
                continue  # by far the most frequent case, and the arithmetic below is slow
            largest = max(largest, largest_gap(one, other, on))
    return largest

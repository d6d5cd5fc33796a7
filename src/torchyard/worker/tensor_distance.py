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
    # Two or three runs, another seed, float64 at twice the size, the candidate's, and copies.
    needed = 12 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
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


def rms(tensor: Any, on: Any = "cpu") -> float:
    """Root mean square over the finite numbers; 0 when there is none."""
    return _root_mean(_finite_squares(one) for (one,) in pieces(on, tensor))


def rms_between(left: Any, right: Any, on: Any = "cpu") -> float:
    """Of the difference of two tensors."""
    return _root_mean(_finite_squares(one - other) for one, other in pieces(on, left, right))


def _finite_squares(numbers: Any) -> Tuple[float, int]:
    numbers = numbers[torch.isfinite(numbers)]
    return float((numbers * numbers).sum()), int(numbers.numel())


def _root_mean(parts: Iterator[Tuple[float, int]]) -> float:
    total, count = 0.0, 0
    for square, numbers in parts:
        total, count = total + square, count + numbers
    return math.sqrt(total / count) if count else 0.0


def overlap(left: Any, right: Any) -> float:
    """Of two masks: how much of what either marks both mark."""
    either = int((left | right).sum())
    return 1.0 if either == 0 else int((left & right).sum()) / either


def largest_difference(left: Results, right: Results, on: Any = "cpu") -> float:
    """Over all finite numbers; infinite when the two do not even have the same shapes."""
    if shapes_of(left) != shapes_of(right):
        return math.inf
    largest = 0.0
    for group, tensors in left.items():
        for one, other in zip(tensors, right[group]):
            if torch.equal(one, other):
                continue  # by far the most frequent case, and the arithmetic below is slow
            for first, second in pieces(on, one, other):
                gap = (first - second).abs()
                gap = gap[torch.isfinite(gap)]
                largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
    return largest


def wander(left: Results, right: Results, on: Any = "cpu") -> Dict[str, List[float]]:
    """How far each tensor moved from one run to the next; empty when shapes did."""
    if shapes_of(left) != shapes_of(right):
        return {}
    return {
        group: [
            0.0 if torch.equal(one, other) else rms_between(one, other, on)
            for one, other in zip(tensors, right[group])
        ]
        for group, tensors in left.items()
    }

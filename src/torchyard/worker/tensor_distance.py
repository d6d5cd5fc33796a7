"""How far tensors are from each other, over everything a model may return. Runs inside the target."""

import math
from typing import Any, Dict, List

import torch

Results = Dict[str, List[Any]]
"""Tensors of one iteration by kind: output, loss, gradient, buffer, parameter."""


def to_plain(results: Results, place: Any = "cpu") -> Results:
    """The same in one place, each tensor in a form that every check understands."""
    return {
        group: [plain(tensor, place) for tensor in tensors] for group, tensors in results.items()
    }


def place_for(results: Results) -> Any:
    """Where results are compared: on their GPU when there is room for all that takes, else on the CPU.

    On an H200, results of 2 GB took 80 s to be compared on the CPU.
    """
    tensors = [tensor for group in results.values() for tensor in group]
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if len(devices) != 1:
        return torch.device("cpu")
    (device,) = devices
    # Two runs, another seed, float64 at twice the size, the candidate's, and what arithmetic takes.
    needed = 24 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
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


def rms(tensor: Any) -> float:
    """Root mean square over the finite numbers; 0 when there is none."""
    tensor = tensor.double()
    tensor = tensor[torch.isfinite(tensor)]
    return math.sqrt(float((tensor * tensor).mean())) if tensor.numel() else 0.0


def cosine(left: Any, right: Any) -> float:
    """Of the angle between two tensors taken as vectors; of two zeros it is 1, of one it is 0."""
    left_size, right_size = float((left * left).sum()), float((right * right).sum())
    if left_size == 0 or right_size == 0:
        return 1.0 if left_size == right_size else 0.0
    return float((left * right).sum()) / math.sqrt(left_size * right_size)


def overlap(left: Any, right: Any) -> float:
    """Of two masks: how much of what either marks both mark."""
    either = int((left | right).sum())
    return 1.0 if either == 0 else int((left & right).sum()) / either


def largest_difference(left: Results, right: Results) -> float:
    """Over all finite numbers; infinite when the two do not even have the same shapes."""
    if shapes_of(left) != shapes_of(right):
        return math.inf
    largest = 0.0
    for group, tensors in left.items():
        for one, other in zip(tensors, right[group]):
            if torch.equal(one, other):
                continue  # by far the most frequent case, and the arithmetic below is slow
            gap = (one.double() - other.double()).abs()
            gap = gap[torch.isfinite(gap)]
            largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
    return largest


def wander(left: Results, right: Results) -> Dict[str, List[float]]:
    """How far each tensor moved from one run to the next; empty when shapes did."""
    if shapes_of(left) != shapes_of(right):
        return {}
    return {
        group: [
            0.0 if torch.equal(one, other) else rms(one.double() - other.double())
            for one, other in zip(tensors, right[group])
        ]
        for group, tensors in left.items()
    }

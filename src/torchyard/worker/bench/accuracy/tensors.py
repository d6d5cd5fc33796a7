"""Distances between tensors, and the structure (containers, types, shapes, devices) of a result."""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.devices import device_of
from torchyard.worker.workload import SEQUENCES, is_opaque, members_of, sorted_keys

Results = Dict[str, List[Any]]
"""Tensors of one iteration by kind: output, loss, gradient, buffer, parameter."""
PIECE = 1 << 22
"""Number of elements that are compared at a time."""


def to_plain(results: Results, place: Any = "cpu") -> Results:
    """Return the results on one device, each tensor dense and real."""
    return {
        group: [plain(tensor, place) for tensor in tensors] for group, tensors in results.items()
    }


def place_for(results: Results) -> Any:
    """Return where to keep results: where they are compared if memory suffices, else on the CPU."""
    tensors = [tensor for group in results.values() for tensor in group]
    names = {str(tensor.device) for tensor in tensors if tensor.device.type != "cpu"}
    if len(names) != 1:
        return torch.device("cpu")
    device = device_of(names.pop())
    # Two or three runs, another seed, float64 at twice the size, the candidate's, simulated runs with
    # their scale, and copies.
    needed = 20 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return torch.device(device.comparison_place if needed < (device.free_bytes() or 0) else "cpu")


def plain(tensor: Any, place: Any = "cpu") -> Any:
    """Return the tensor on that device, dense, with complex numbers as pairs."""
    tensor = tensor.detach().to(place)
    if getattr(tensor, "is_nested", False):
        tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_floating_point() and tensor.element_size() < 2:
        tensor = tensor.float()  # the 8-bit formats have no arithmetic
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def shapes_of(results: Results) -> Dict[str, List[Any]]:
    """Return the shapes by group, to decide whether two results are comparable."""
    return {group: [tuple(t.shape) for t in tensors] for group, tensors in results.items()}


def pieces(on: Any, *tensors: Any) -> Iterator[Tuple[Any, ...]]:
    """Yield corresponding chunks of the tensors in float64 on that device."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(one[start : start + PIECE].to(on).double() for one in flat)


def largest_gap(one: Any, other: Any, on: Any = "cpu") -> float:
    """Return the largest difference of two tensors over all finite numbers."""
    largest = 0.0
    for first, second in pieces(on, one, other):
        gap = (first - second).abs()
        gap = gap[torch.isfinite(gap)]
        largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
    return largest


def rms_between(one: Any, other: Any, on: Any = "cpu") -> float:
    """Return the root mean square difference of two tensors over all finite numbers."""
    total, count = 0.0, 0
    for first, second in pieces(on, one, other):
        gap = first - second
        gap = gap[torch.isfinite(gap)]
        total, count = total + float((gap * gap).sum()), count + int(gap.numel())
    return math.sqrt(total / count) if count else 0.0


def same_bits(left: Results, right: Results) -> bool:
    """Whether two results are equal, including types; NaN is unequal to everything."""
    return shapes_of(left) == shapes_of(right) and all(
        one.dtype is other.dtype and torch.equal(one, other)
        for group, tensors in left.items()
        for one, other in zip(tensors, right[group])
    )


def relative_distance(one: Results, reference: Results) -> float:
    """Return the norm of the differences divided by that of the reference, over all tensors."""
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
    """Return the largest difference over all finite numbers; infinite when the shapes differ."""
    if shapes_of(left) != shapes_of(right):
        return math.inf
    largest = 0.0
    for group, tensors in left.items():
        for one, other in zip(tensors, right[group]):
            if torch.equal(one, other):
                continue  # the most frequent case; the arithmetic below is slow
            largest = max(largest, largest_gap(one, other, on))
    return largest


CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice, type)
PLAIN = (bool, int, float, complex, str, bytes, type(None))
CLOSE = 1e-2
"""Relative difference of Python numbers in a result that may come from rounding."""


ITERATOR = "an iterator of type "
LAZY = "the work of an iterator is not timed:"
"""Start of the reason for distrust if a result is computed while it is read."""
COMPARED_OBJECTS = (" ndarray", " set", " frozenset")
"""Endings of the facts of objects that are compared as values of the result."""


class Part(NamedTuple):
    """One element of a result's structure: its location and its properties."""

    where: str
    kind: str
    facts: List[str]
    number: Optional[Any] = None


def describe(value: Any, training: bool) -> List[Part]:
    """Return every container, tensor and plain value of a result, in the order of `flatten`."""
    parts: List[Part] = []
    _describe(value, "result", training, parts, 0)
    return parts


def _describe(value: Any, where: str, training: bool, parts: List[Part], depth: int) -> None:
    if depth > 50:
        return
    if isinstance(value, torch.Tensor):
        parts.append(Part(where, "tensor", _tensor_facts(value, training)))
        return
    kind = _name_of(type(value))
    if isinstance(value, dict):
        parts.append(
            Part(where, "container", ["a %s with keys %s" % (kind, sorted(map(str, value)))])
        )
        for key in sorted_keys(value):
            _describe(value[key], "%s[%r]" % (where, key), training, parts, depth + 1)
    elif isinstance(value, SEQUENCES):
        parts.append(Part(where, "container", ["a %s of %d" % (kind, len(value))]))
        for index, item in enumerate(value):
            _describe(item, "%s[%d]" % (where, index), training, parts, depth + 1)
    elif isinstance(value, PLAIN):
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        facts = ["a %s" % kind] if numeric else [repr(value)[:80]]
        parts.append(Part(where, "plain", facts, value if numeric else None))
    elif isinstance(value, CONSTANTS):
        parts.append(Part(where, "plain", [repr(value)]))
    elif is_opaque(value):
        text = ITERATOR if hasattr(value, "__next__") else "an object of type "
        parts.append(Part(where, "object", [text + kind]))
    else:
        parts.append(Part(where, "container", ["an object of type %s" % kind]))
        for name, item in members_of(value).items():
            _describe(item, "%s.%s" % (where, name), training, parts, depth + 1)


def _name_of(kind: type) -> str:
    """Return the name of a type; with its module for one that is named like a type of Python or torch."""
    standard = {one.__name__: one for one in (*SEQUENCES, dict, torch.Tensor)}
    if standard.get(kind.__name__, kind) is kind:
        return kind.__name__
    return "%s.%s" % (kind.__module__, kind.__qualname__)


def not_compared(parts: List[Part]) -> List[str]:
    """Return notes about elements whose values no check compares, such as generators and functions."""
    objects = [part for part in parts if part.kind == "object"]
    unread = [
        "%s: %s" % (part.where, part.facts[0])
        for part in objects
        if not part.facts[0].endswith(COMPARED_OBJECTS)
    ]
    lazy = [part.where for part in objects if part.facts[0].startswith(ITERATOR)]
    notes = ["not compared: " + ", ".join(unread[:3])] if unread else []
    return notes + ["%s %s" % (LAZY, ", ".join(lazy[:3]))] if lazy else notes


def _tensor_facts(tensor: Any, training: bool) -> List[str]:
    kind = torch.Tensor if isinstance(tensor, torch.nn.Parameter) else type(tensor)
    facts = [
        "type %s" % _name_of(kind),
        str(tensor.dtype),
        "shape %s" % (_shape_of(tensor),),
        "on %s" % tensor.device.type,
        str(tensor.layout),
    ]
    if training and tensor.requires_grad:
        facts.append("with a gradient function")
    elif training:
        facts.append("without a gradient function")
    return facts


def _shape_of(tensor: Any) -> Any:
    """Return the shape; of a nested tensor those of its parts."""
    if getattr(tensor, "is_nested", False):
        return [tuple(part.shape) for part in tensor.unbind()]
    return tuple(tensor.shape)


def difference(actual: List[Part], expected: List[Part]) -> str:
    """Describe the first difference; empty when there is none."""
    for mine, theirs in zip(actual, expected):
        if mine.where != theirs.where:
            return "%s where %s is expected" % (mine.where, theirs.where)
        pairs = list(zip(mine.facts, theirs.facts))
        if mine.kind != theirs.kind or len(mine.facts) != len(theirs.facts):
            pairs = [(", ".join(mine.facts), ", ".join(theirs.facts))]
        for one, other in pairs:
            if one == "with a gradient function" and other.startswith("without"):
                continue  # an additional gradient function is harmless
            if one != other:
                return "%s: %s instead of %s" % (mine.where, one, other)
        if theirs.number is not None and not _near(mine.number, theirs.number):
            return "%s: %r instead of %r" % (mine.where, mine.number, theirs.number)
    if len(actual) != len(expected):
        longer, word = (actual, "more") if len(actual) > len(expected) else (expected, "missing")
        return "%s is %s" % (longer[min(len(actual), len(expected))].where, word)
    return ""


def same_tensors(actual: List[Part], expected: List[Part]) -> bool:
    """Whether the tensors agree, regardless of their containers."""
    mine = [part.facts for part in actual if part.kind == "tensor"]
    return mine == [part.facts for part in expected if part.kind == "tensor"]


def _near(one: Any, other: Any) -> bool:
    if isinstance(other, int):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-6) or (
        math.isnan(one) and math.isnan(other)
    )

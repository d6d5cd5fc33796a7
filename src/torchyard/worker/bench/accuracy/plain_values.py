"""Numbers, texts and NumPy arrays in a result, as tensors: they are compared by the same rules as its tensors.

Integers and texts must be equal, and numbers may differ by rounding. Values inside containers and dataclasses are
read; attributes of other objects are compared only before timing.
"""

import dataclasses
from typing import Any, Dict, List, Tuple

import torch

from torchyard.worker.workload import SEQUENCES, members_of, sorted_keys

GROUP = "value"
"""Group of these tensors in results."""
LARGEST_INTEGER = 2**63 - 1

Found = Dict[Tuple[str, str], List[Any]]
"""Values by place and type. Elements of a sequence have one place: a list of numbers becomes one tensor."""


def values_of(result: Any) -> List[Any]:
    """Return the values of a result other than tensors, as tensors on the CPU."""
    found: Found = {}
    _find(result, "", found, 0)
    return [_as_tensor(kind, values) for (_, kind), values in found.items()]


def _find(value: Any, place: str, found: Found, depth: int) -> None:
    if depth > 50 or value is None or isinstance(value, torch.Tensor):
        return
    array = _array_of(value)
    if array is not None:
        found.setdefault(("%s %d" % (place, len(found)), "array"), []).append(array)
    elif isinstance(value, (bool, int)):
        fits = -LARGEST_INTEGER <= value <= LARGEST_INTEGER
        _add(found, place, "integer" if fits else "text", int(value) if fits else str(value))
    elif isinstance(value, float):
        _add(found, place, "float", float(value))
    elif isinstance(value, complex):
        _add(found, place, "complex", complex(value))
    elif isinstance(value, (str, bytes)):
        _add(found, place, "text", repr(value))
    elif isinstance(value, (set, frozenset)):
        _add(found, place, "text", repr(sorted(map(repr, value))))
    elif isinstance(value, dict):
        for key in sorted_keys(value):
            _find(value[key], "%s[%r]" % (place, key), found, depth + 1)
    elif isinstance(value, SEQUENCES):
        for item in value:
            _find(item, place + "[]", found, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, item in members_of(value).items():
            _find(item, "%s.%s" % (place, name), found, depth + 1)


def _add(found: Found, place: str, kind: str, value: Any) -> None:
    found.setdefault((place, kind), []).append(value)


def _array_of(value: Any) -> Any:
    """Return a NumPy array or number as a tensor, or as text if torch has no such type; None for others."""
    if not type(value).__module__.startswith("numpy") or not hasattr(value, "tobytes"):
        return None
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return _as_tensor("text", [repr(value.tolist())])


def _as_tensor(kind: str, values: List[Any]) -> Any:
    if kind == "array":
        return values[0]
    if kind == "text":
        # Two texts of one length differ in their characters, others in their shape.
        return torch.tensor(list("\0".join(values).encode("utf-8", "replace")), dtype=torch.uint8)
    types = {"integer": torch.int64, "float": torch.float64, "complex": torch.complex128}
    return torch.tensor(values, dtype=types[kind])

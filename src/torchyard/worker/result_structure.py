"""What a result is besides its numbers: containers, types, shapes, devices. Runs inside the target.

A caller that unpacks a tuple, asks for a gradient or moves data depends on these as much as on the
numbers. Strides are left out: compilers choose them.
"""

import math
from typing import Any, List, Optional

import torch

from torchyard.worker.built import is_opaque

PLAIN = (bool, int, float, complex, str, bytes, type(None))
CLOSE = 1e-2
"""Relative difference of Python numbers in a result that may come from rounding."""


class Part:
    """One place of a result: where it is, and what is there."""

    def __init__(
        self, where: str, kind: str, facts: List[str], number: Optional[Any] = None
    ) -> None:
        self.where = where
        self.kind = kind
        self.facts = facts
        self.number = number


def describe(value: Any, training: bool) -> List[Part]:
    """Every container, tensor and plain value of a result, in the order of `flatten`."""
    parts: List[Part] = []
    _describe(value, "result", training, parts, 0)
    return parts


def _describe(value: Any, where: str, training: bool, parts: List[Part], depth: int) -> None:
    if depth > 50:
        return
    if isinstance(value, torch.Tensor):
        parts.append(Part(where, "tensor", _tensor_facts(value, training)))
        return
    kind = type(value).__name__
    if isinstance(value, dict):
        parts.append(
            Part(where, "container", ["a %s with keys %s" % (kind, sorted(map(str, value)))])
        )
        for key in value:
            _describe(value[key], "%s[%r]" % (where, key), training, parts, depth + 1)
    elif isinstance(value, (list, tuple)):
        parts.append(Part(where, "container", ["a %s of %d" % (kind, len(value))]))
        for index, item in enumerate(value):
            _describe(item, "%s[%d]" % (where, index), training, parts, depth + 1)
    elif isinstance(value, PLAIN):
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        facts = ["a %s" % kind] if numeric else [repr(value)[:80]]
        parts.append(Part(where, "plain", facts, value if numeric else None))
    elif is_opaque(value):
        parts.append(Part(where, "object", ["an object of type %s" % kind]))
    else:
        parts.append(Part(where, "container", ["an object of type %s" % kind]))
        for name, item in vars(value).items():
            _describe(item, "%s.%s" % (where, name), training, parts, depth + 1)


def _tensor_facts(tensor: Any, training: bool) -> List[str]:
    kind = torch.Tensor if isinstance(tensor, torch.nn.Parameter) else type(tensor)
    facts = [
        "type %s" % kind.__name__,
        str(tensor.dtype),
        "shape %s" % (tuple(tensor.shape),),
        "on %s" % tensor.device.type,
        str(tensor.layout),
    ]
    if training and tensor.requires_grad:
        facts.append("with a gradient function")
    elif training:
        facts.append("without a gradient function")
    return facts


def difference(found: List[Part], expected: List[Part]) -> str:
    """The first difference in words; empty when there is none."""
    for mine, theirs in zip(found, expected):
        if mine.where != theirs.where:
            return "%s where %s is expected" % (mine.where, theirs.where)
        pairs = list(zip(mine.facts, theirs.facts))
        if mine.kind != theirs.kind or len(mine.facts) != len(theirs.facts):
            pairs = [(", ".join(mine.facts), ", ".join(theirs.facts))]
        for one, other in pairs:
            if one == "with a gradient function" and other.startswith("without"):
                continue  # more than is needed does no harm
            if one != other:
                return "%s: %s instead of %s" % (mine.where, one, other)
        if theirs.number is not None and not _near(mine.number, theirs.number):
            return "%s: %r instead of %r" % (mine.where, mine.number, theirs.number)
    if len(found) != len(expected):
        longer, word = (found, "more") if len(found) > len(expected) else (expected, "missing")
        return "%s is %s" % (longer[min(len(found), len(expected))].where, word)
    return ""


def same_tensors(found: List[Part], expected: List[Part]) -> bool:
    """Whether the tensors agree, in whatever containers they are."""
    mine = [part.facts for part in found if part.kind == "tensor"]
    return mine == [part.facts for part in expected if part.kind == "tensor"]


def _near(one: Any, other: Any) -> bool:
    if isinstance(other, int):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-6) or (
        math.isnan(one) and math.isnan(other)
    )

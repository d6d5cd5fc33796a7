"""Parts of Vega-Lite specs: layers, marks, and fields of the data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Spec = dict[str, Any]


def layer(
    mark: Spec,
    *,
    values: Iterable[Spec] | None = None,
    transform: Iterable[Spec] = (),
    **encoding: Spec,
) -> Spec:
    """Return a layer, with the rows of the chart unless it has `values` of its own."""
    parts: Spec = {} if values is None else {"data": {"values": list(values)}}
    if steps := list(transform):
        parts["transform"] = steps
    return {**parts, "mark": mark, "encoding": encoding}


def mark(kind: str, **properties: Any) -> Spec:
    """Return the mark of a layer."""
    return {"type": kind, **properties}


def quantity(field: str, **properties: Any) -> Spec:
    """Return a field with numbers."""
    return {"field": field, "type": "quantitative", **properties}


def category(field: str, **properties: Any) -> Spec:
    """Return a field with names, without order."""
    return {"field": field, "type": "nominal", **properties}


def calculated(name: str, expression: str) -> Spec:
    """Return the transformation that adds a field."""
    return {"calculate": expression, "as": name}


def scale(domain: Iterable[Any], range_: Iterable[Any]) -> Spec:
    """Return the scale that maps names to colors or shapes."""
    return {"domain": list(domain), "range": list(range_)}


def parameters(**values: Any) -> list[Spec]:
    """Return the variables of expressions."""
    return [{"name": name, "value": value} for name, value in values.items()]

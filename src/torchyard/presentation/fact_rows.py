"""Flatten nested facts of machines and targets into rows of name and text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torchyard.core.units import format_bytes
from torchyard.presentation.safe_text import one_line, plain_lines


def fact_rows(facts: object, prefix: str = "") -> list[tuple[str, str]]:
    """One row per fact; a nested fact is named `outer.inner`."""
    return list(_rows(facts, prefix))


def _rows(facts: object, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(facts, Mapping):
        for key, value in facts.items():
            name = one_line(str(key))
            yield from _rows(value, f"{prefix}.{name}" if prefix else name)
    elif isinstance(facts, (list, tuple)) and any(isinstance(x, (Mapping, list)) for x in facts):
        for index, value in enumerate(facts):
            yield from _rows(value, f"{prefix}[{index}]")
    else:
        yield prefix, _text(facts, prefix)


def _text(value: object, name: str) -> str:
    if value is None or value == "":
        return "unavailable"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            return "unavailable"
        if name.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(one_line(str(item)) for item in value) or "none"
    return plain_lines(str(value), last=60)

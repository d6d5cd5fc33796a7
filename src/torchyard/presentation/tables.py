"""Tables and documents for export (Markdown, CSV, JSON), and rows of nested facts.

Aligned text is in `safe_text`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, Final

from torchyard.core.units import format_bytes
from torchyard.presentation.safe_text import escaped, one_line, plain_lines

Cell = str | int | float | None
_FORMULA_STARTS: Final = ("=", "+", "-", "@")


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()
) -> list[str]:
    """Return the lines of a Markdown table; cells are Markdown, and columns in `right` are right-aligned."""
    rule = ["---:" if column in right else "---" for column in range(len(heads))]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def escaped_cells(rows: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return rows of plain text as Markdown."""
    return [[escaped(cell) for cell in row] for row in rows]


def csv_text(rows: Iterable[Iterable[Cell]]) -> str:
    """Return CSV: every text on one line, no NaN, and no text that looks like a formula."""
    page = StringIO()
    csv.writer(page, lineterminator="\n").writerows(map(_csv_cell, row) for row in rows)
    return page.getvalue()


def _csv_cell(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return None if isinstance(cell, float) and not math.isfinite(cell) else cell
    text = one_line(cell)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def json_text(document: Any) -> str:
    """Return indented JSON; numbers that are not finite become null."""
    return json.dumps(finite(document), indent=2, allow_nan=False) + "\n"


def finite(value: Any, clean: Callable[[str], str] = str) -> Any:
    """Replace non-finite numbers, which JSON does not support, by None; `clean` changes texts."""
    if isinstance(value, Mapping):
        return {key: finite(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item, clean) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return clean(value) if isinstance(value, str) else value


def fact_rows(facts: object, prefix: str = "") -> list[tuple[str, str]]:
    """Return name and text of each fact; a nested fact is named `outer.inner`."""
    return list(_fact_rows(facts, prefix))


def _fact_rows(facts: object, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(facts, Mapping):
        for key, value in facts.items():
            name = one_line(str(key))
            yield from _fact_rows(value, f"{prefix}.{name}" if prefix else name)
    elif isinstance(facts, (list, tuple)) and any(isinstance(x, (Mapping, list)) for x in facts):
        for index, value in enumerate(facts):
            yield from _fact_rows(value, f"{prefix}[{index}]")
    else:
        yield prefix, _fact_text(facts, prefix)


def _fact_text(value: object, name: str) -> str:
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

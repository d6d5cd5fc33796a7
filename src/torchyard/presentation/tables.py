"""Tables and documents for export: Markdown, CSV and JSON. Aligned text is in `safe_text`."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import Any, Final

from torchyard.presentation.safe_text import escaped, one_line

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


def finite(value: Any) -> Any:
    """Replace non-finite numbers, which JSON does not support, by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

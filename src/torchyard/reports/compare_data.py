"""Two sides compared, as JSON for programs and as CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
import math
from io import StringIO
from typing import Any, Final

from torchyard.core.cross_comparison import CrossComparison, CrossRow, SideNumbers
from torchyard.core.records import encode
from torchyard.reports.plain_text import one_line

__all__ = ["COMPARE_SCHEMA", "COMPARE_SCHEMA_VERSION", "compare_csv", "compare_json", "finite"]

COMPARE_SCHEMA: Final = "torchyard.comparison-of-runs"
COMPARE_SCHEMA_VERSION: Final = 1
"""Raised when a key changes its meaning or goes away; added keys do not raise it."""

Cell = str | int | float | None
_FORMULA_STARTS: Final = ("=", "+", "-", "@")
_EMPTY_SIDE: Final = SideNumbers(variant="")
_EMPTY: Final = CrossRow(
    workload="", one=_EMPTY_SIDE, other=_EMPTY_SIDE, support="not supported", basis="times"
)
"""Gives the headings, also to a comparison without rows."""


def compare_json(comparison: CrossComparison) -> str:
    """Valid JSON: numbers that are none become null."""
    rows = [
        {**encode(row), "trusted": row.trusted, "baseline_shift": row.baseline_shift}
        for row in comparison.rows
    ]
    document = {
        "schema": COMPARE_SCHEMA,
        "schema_version": COMPARE_SCHEMA_VERSION,
        **encode(comparison),
        "rows": rows,
    }
    return json.dumps(finite(document), indent=2, allow_nan=False) + "\n"


def compare_csv(comparison: CrossComparison) -> str:
    """One row per workload, those that cannot be compared last."""
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_row(_EMPTY))
    writer.writerows([_safe(cell) for cell in _row(row).values()] for row in comparison.rows)
    for item in comparison.unpaired:
        cells = dict.fromkeys(_row(_EMPTY))
        cells |= {
            "workload": item.workload,
            "a_variant": item.variants[0],
            "b_variant": item.variants[1],
            "support": f"A {item.one}, B {item.other}",
            "notes": item.why,
        }
        writer.writerow([_safe(cell) for cell in cells.values()])
    return page.getvalue()


def finite(value: Any) -> Any:
    """The value with null for numbers that JSON has no form for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(row: CrossRow) -> dict[str, Cell]:
    interval = row.interval
    return {
        "workload": row.workload,
        "support": row.support,
        "basis": row.basis,
        "verdict": row.verdict.value if row.verdict else None,
        "trusted": row.trusted,
        "untrusted": "; ".join(row.untrusted),
        "ratio": row.ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "p_value": row.p_value,
        "p_adjusted": row.p_adjusted,
        **_side("a", row.one),
        **_side("b", row.other),
        "baseline_shift": row.baseline_shift,
        "notes": "; ".join(row.reasons),
    }


def _side(letter: str, numbers: SideNumbers) -> dict[str, Cell]:
    interval = numbers.interval
    return {
        f"{letter}_variant": numbers.variant,
        f"{letter}_time_ns": numbers.time_ns,
        f"{letter}_speedup": numbers.speedup,
        f"{letter}_speedup_low": interval.low if interval else None,
        f"{letter}_speedup_high": interval.high if interval else None,
        f"{letter}_launches": numbers.launches,
        f"{letter}_sessions": numbers.sessions,
        f"{letter}_compile_s": numbers.compile_s,
        f"{letter}_memory_bytes": numbers.memory_bytes,
        f"{letter}_dirty_share": numbers.dirty_share,
    }


def _safe(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return None if isinstance(cell, float) and not math.isfinite(cell) else cell
    text = one_line(cell)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text

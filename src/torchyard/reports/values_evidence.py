"""What a finding's evidence shows: sample values, a histogram, and other operators it names.

Evidence is whatever a worker wrote, perhaps a newer one: known keys are shown as what they are, if
they have that form, the rest as short texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torchyard.core.units import format_percent
from torchyard.reports.flow_waste import LINKS
from torchyard.reports.values_wording import clipped, operator_text, short_file

__all__ = ["Bar", "Evidence", "Histogram", "evidence_of"]

WIDTH: Final = 320
HEIGHT: Final = 72
_MOST_BINS: Final = 64
_MOST_SAMPLE: Final = 16
_MOST_ROWS: Final = 12
_SHARES: Final = {
    "zero_share": "zeros",
    "unchanged_share": "unchanged",
    "zero_rows": "rows of zeros",
    "share": "one number",
}
_SHOWN_APART: Final = frozenset({"sample", "histogram", "range", "sampled", "distinct"})


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bin; places in a picture of WIDTH by HEIGHT."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Bins between two numbers."""

    bars: tuple[Bar, ...]
    low: str
    high: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything there is to show."""

    rows: tuple[tuple[str, str], ...]
    sample: tuple[str, ...]
    histogram: Histogram | None


def evidence_of(evidence: Mapping[str, Any]) -> Evidence:
    """The parts that have the form they should have."""
    sample = evidence.get("sample")
    return Evidence(
        rows=tuple(_rows(evidence)[:_MOST_ROWS]),
        sample=tuple(_value(item) for item in sample[:_MOST_SAMPLE])
        if isinstance(sample, list)
        else (),
        histogram=_histogram(evidence.get("histogram")),
    )


def _rows(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, name in _SHARES.items():
        share = _finite(evidence.get(key))
        if share is not None:
            rows.append((name, format_percent(share)))
    values = evidence.get("range")
    if isinstance(values, list) and len(values) == 2:  # noqa: PLR2004
        rows.append(("range", f"{_value(values[0])} to {_value(values[1])}"))
    distinct, sampled = _finite(evidence.get("distinct")), _finite(evidence.get("sampled"))
    if distinct is not None:
        of = f" among {sampled:,.0f} looked at" if sampled is not None else ""
        rows.append(("distinct values", f"{distinct:,.0f}{of}"))
    for key, value in evidence.items():
        if key in LINKS and isinstance(value, dict):
            rows.append((LINKS[key], _operator(value)))
        elif key not in _SHOWN_APART and key not in _SHARES:
            rows.append((clipped(str(key), 40).replace("_", " "), _value(value)))
    return rows


def _operator(value: Mapping[str, Any]) -> str:
    backward = ", backward" if value.get("backward") is True else ""
    place = f"{short_file(str(value.get('file', '')))}:{clipped(str(value.get('line', '')), 12)}"
    return f"{operator_text(str(value.get('operator', '')))} at {place}{backward}"


def _histogram(value: Any) -> Histogram | None:
    if not isinstance(value, dict) or not isinstance(value.get("counts"), list):
        return None
    counts = [_finite(count) for count in value["counts"][:_MOST_BINS]]
    low, high = _finite(value.get("low")), _finite(value.get("high"))
    known = [count for count in counts if count is not None and count >= 0]
    if low is None or high is None or len(known) != len(counts) or not sum(known):
        return None
    most, total, each = max(known), sum(known), WIDTH / len(known)
    step = (high - low) / len(known)
    bars = []
    for number, count in enumerate(known):
        # A bin that is not empty can be seen.
        height = max(1.5, HEIGHT * count / most) if count else 0.0
        between = f"{_value(low + number * step)} to {_value(low + (number + 1) * step)}"
        bars.append(
            Bar(
                x=round(number * each, 2),
                y=round(HEIGHT - height, 2),
                width=round(each - 1, 2),
                height=round(height, 2),
                title=f"{between}: {count:,.0f}",
            )
        )
    fullest = max(range(len(known)), key=lambda number: known[number])
    label = (
        f"Histogram of {total:,.0f} values from {_value(low)} to {_value(high)}; "
        f"{format_percent(known[fullest] / total)} of them are {bars[fullest].title.partition(':')[0]}"
    )
    return Histogram(bars=tuple(bars), low=_value(low), high=_value(high), label=label)


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clipped(str(value), 80)
    if isinstance(value, int):
        return clipped(str(value), 24) if abs(value) < 10**18 else f"{float(value):.4g}"
    return f"{value:.5g}"


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None

"""Two sides compared, as one HTML file that needs nothing else. Loads jinja2 when a page is made."""

from __future__ import annotations

from typing import Any

from torchyard import __version__
from torchyard.core.comparison import Verdict
from torchyard.core.cross_comparison import CrossComparison, CrossRow
from torchyard.reports.charts import speedup_axis
from torchyard.reports.compare_wording import (
    assumption_text,
    counts_text,
    drift_text,
    notes_of_row,
    p_of_row,
    ratio_text,
    row_title,
    side_lines,
    side_speedup,
    side_time,
    unpaired_text,
    verdict_of_row,
)
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import number_text

__all__ = ["compare_html", "compare_values"]


def compare_html(comparison: CrossComparison) -> str:
    """The whole page."""
    style = asset("report.css") + asset("compare.css")
    engine = template_engine()
    engine.filters["number"] = number_text
    return engine.get_template("compare.html.j2").render(
        title=f"{one_line(comparison.one.text)} against {one_line(comparison.other.text)}",
        version=__version__,
        sides=side_lines(comparison),
        style=style,
        style_hash=fingerprint(style),
        sortable=False,
        **compare_values(comparison),
    )


def compare_values(comparison: CrossComparison) -> dict[str, Any]:
    """What `compare_body.html.j2` shows; it also asks whether a script sorts its table."""
    several = len(comparison.one.variants) > 1 or len(comparison.other.variants) > 1
    numbers = [number for row in comparison.rows for number in _numbers(row)]
    return {
        "mean": comparison.mean,
        "counts": counts_text(comparison),
        "remarks": [text for text in (drift_text(comparison), assumption_text(comparison)) if text],
        "confidence": f"{100 * comparison.confidence:g}%",
        "margin": comparison.margin,
        "axis": speedup_axis([1.0, *numbers]),
        "rows": [_row(row, several=several) for row in comparison.rows],
        "unpaired": [
            (row_title(item, variants=several), unpaired_text(item)) for item in comparison.unpaired
        ],
        "facts": comparison.facts,
    }


def _row(row: CrossRow, *, several: bool) -> dict[str, Any]:
    ratio, interval = ratio_text(row)
    verdict = row.verdict or Verdict.UNDECIDED
    return {
        "title": row_title(row, variants=several),
        "notes": notes_of_row(row),
        "support": row.support,
        "supported": row.support != "not supported",
        "verdict": verdict.value,
        "verdict_text": verdict_of_row(row),
        "ratio": ratio,
        "interval": interval,
        "low": row.interval.low if row.interval else None,
        "high": row.interval.high if row.interval else None,
        "value": row.ratio,
        "p": p_of_row(row),
        "times": (side_time(row.one), side_time(row.other)),
        "speedups": (side_speedup(row.one), side_speedup(row.other)),
    }


def _numbers(row: CrossRow) -> list[float]:
    if row.ratio is None or row.support == "not supported":
        return []
    return [row.ratio, *([row.interval.low, row.interval.high] if row.interval else [])]

"""Histories with their changes as one HTML file that needs nothing else: no script, no network.

Loads jinja2, and vl-convert for the charts, when a page is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from torchyard import __version__
from torchyard.core.change import SeriesHistory
from torchyard.core.stored import Metric
from torchyard.reports.history_charts import history_description, history_spec
from torchyard.reports.history_text import change_cells
from torchyard.reports.history_wording import (
    METHOD,
    changed_title,
    counts_text,
    revision_text,
    series_title,
    value_text,
    when_text,
)
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.plain_text import one_line
from torchyard.reports.vega import inline_chart

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["MOST_CHARTS", "history_page"]

MOST_CHARTS: Final = 60
"""Histories beyond so many are listed without a chart: each costs about 50 KB of the page."""
_LAST_RUNS: Final = 50


def history_page(found: Sequence[SeriesHistory], metric: Metric) -> str:
    """The whole page; histories come in the order given."""
    style = asset("report.css") + asset("charts.css") + asset("history.css")
    return (
        template_engine()
        .get_template("history.html.j2")
        .render(
            title=changed_title(found, metric),
            version=__version__,
            method=METHOD,
            rows=[_row(number, one) for number, one in enumerate(found, start=1)],
            undrawn=max(0, len(found) - MOST_CHARTS),
            last_runs=_LAST_RUNS,
            style=style,
            style_hash=fingerprint(style),
        )
    )


def _row(number: int, one: SeriesHistory) -> dict[str, Any]:
    metric = one.series.metric
    return {
        "anchor": f"history-{number}",
        "title": series_title(one),
        "counts": counts_text(one),
        "changes": [
            {"towards": change.towards(metric), "cells": change_cells(change, metric)[1:]}
            for change in one.changes
        ],
        "chart": _chart(one) if number <= MOST_CHARTS and one.points else "",
        "runs": [
            (
                when_text(point),
                one_line(point.run),
                revision_text(point),
                value_text(metric, point.value),
                "untrusted, not judged" if point.untrusted else "",
            )
            for point in reversed(one.points[-_LAST_RUNS:])
        ],
        "more_runs": max(0, len(one.points) - _LAST_RUNS),
    }


def _chart(one: SeriesHistory) -> Markup:
    return inline_chart(history_spec(one), title="", description=history_description(one))

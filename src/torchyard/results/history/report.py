"""Report histories and their changes: terminal text, JSON, CSV, Markdown and HTML.

The HTML page is one self-contained file without scripts. jinja2, and vl-convert for the charts,
are imported when a page is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent, wrap
from typing import Any, Final

from torchyard import __version__
from torchyard.core.records import encode
from torchyard.presentation.html_page import render_page
from torchyard.presentation.safe_text import aligned, escaped, one_line, wrapped
from torchyard.presentation.tables import csv_text, escaped_cells, json_text, markdown_table
from torchyard.presentation.vega import inline_chart
from torchyard.results.history.changes import (
    METHOD,
    change_interval,
    change_sentence,
    change_size,
    changed_title,
    counts_text,
    p_text,
    range_text,
    revision_text,
    series_title,
    value_text,
    when_text,
    with_short_names,
)
from torchyard.results.history.charts import history_description, history_spec, plot_lines
from torchyard.results.model import ChangePoint, Metric, SeriesHistory

CHANGE_HEADINGS: Final = ("", "kind", "size", "interval", "p", "revisions", "since")


def change_cells(change: ChangePoint, metric: Metric) -> tuple[str, ...]:
    """Return one row of a table of changes."""
    return (
        change.towards(metric),
        change.kind,
        change_size(change),
        change_interval(change),
        p_text(change),
        range_text(change),
        when_text(change.after if change.kind == "step" else change.before),
    )


def changes_text(histories: Sequence[SeriesHistory], metric: Metric, *, width: int = 100) -> str:
    """Render the histories that changed as text, in the given order."""
    histories = with_short_names(histories)
    lines = [changed_title(histories, metric)]
    changed = [one for one in histories if one.changes]
    for one in changed:
        lines += ["", series_title(one)]
        cells = [change_cells(change, metric) for change in one.changes]
        lines.append(indent(aligned([CHANGE_HEADINGS, *cells]), "  "))
    lines += ["", *wrap(METHOD, width)]
    return "\n".join(lines) + "\n"


def series_text(
    histories: Sequence[SeriesHistory], *, width: int = 100, ascii_only: bool = False
) -> str:
    """Render each series with a plot and its changes as text."""
    histories = with_short_names(histories)
    lines: list[str] = []
    for one in histories:
        lines += [series_title(one), *wrapped(counts_text(one), width), ""]
        lines += [*plot_lines(one, width=width, ascii_only=ascii_only), ""]
        for change in one.changes:
            sentence = change_sentence(change, one.series.metric)
            mark = "~" if change.kind == "drift" else "^" if ascii_only else "▲"
            lines += wrapped(f"{mark} {sentence}", width, rest="  ")
        if not one.changes:
            lines.append("no change detected")
        lines.append("")
    lines += wrap(METHOD, width)
    return "\n".join(lines) + "\n"


HISTORY_SCHEMA: Final = "torchyard.changes"
HISTORY_SCHEMA_VERSION: Final = 1
_CSV_HEADINGS: Final = (
    *("workload", "baseline", "candidate", "machine", "metric", "kind", "towards"),
    *("ratio", "low", "high", "p_value", "p_adjusted"),
    *("before_run", "before_revision", "before_started"),
    *("after_run", "after_revision", "after_started"),
)


def history_json(histories: Sequence[SeriesHistory], *, points: bool) -> str:
    """Render the histories as JSON, optionally with all points."""
    document = {
        "schema": HISTORY_SCHEMA,
        "schema_version": HISTORY_SCHEMA_VERSION,
        "series": [
            {
                **encode(one.series),
                "runs": len(one.points),
                "runs_left_out": one.left_out,
                "changes": [_record(change, one) for change in one.changes],
                "weak_changes": [_record(change, one) for change in one.weak],
                **({"points": encode(one.points)} if points else {}),
            }
            for one in histories
        ],
    }
    return json_text(document)


def history_csv(histories: Sequence[SeriesHistory]) -> str:
    """Render the changes as CSV, one row per change."""
    rows: list[Sequence[Any]] = [_CSV_HEADINGS]
    for one in histories:
        series = one.series
        for change in one.changes:
            interval = change.interval
            row: list[Any] = [
                *(series.workload, series.baseline, series.candidate, series.machine),
                *(series.metric, change.kind, change.towards(series.metric), change.ratio),
                *((interval.low, interval.high) if interval else ("", "")),
                *(change.p_value, "" if change.p_adjusted is None else change.p_adjusted),
            ]
            for point in (change.before, change.after):
                row += [point.run, point.revision, point.started]
            rows.append(row)
    return csv_text(rows)


def changes_markdown(histories: Sequence[SeriesHistory], metric: Metric) -> str:
    """Render all changes as a Markdown table, for a pull request."""
    histories = with_short_names(histories)
    lines = [f"## {escaped(changed_title(histories, metric))}", ""]
    headings = ("history", "towards", *CHANGE_HEADINGS[1:])
    cells = [
        (series_title(one), *change_cells(change, metric))
        for one in histories
        for change in one.changes
    ]
    if cells:
        lines += [*markdown_table(headings, escaped_cells(cells)), ""]
    return "\n".join([*lines, escaped(METHOD)]) + "\n"


def series_markdown(histories: Sequence[SeriesHistory]) -> str:
    """Render each series with its changes as Markdown."""
    histories = with_short_names(histories)
    lines: list[str] = []
    for one in histories:
        lines += [f"## {escaped(series_title(one))}", "", escaped(counts_text(one)), ""]
        lines += [
            f"- {escaped(change_sentence(change, one.series.metric))}" for change in one.changes
        ] or ["No change detected."]
        lines.append("")
    return "\n".join([*lines, escaped(METHOD)]) + "\n"


def _record(change: ChangePoint, one: SeriesHistory) -> dict[str, Any]:
    return {**encode(change), "towards": change.towards(one.series.metric)}


MOST_CHARTS: Final = 60
"""Further histories are listed without a chart: each one adds about 50 KB to the page."""
_LAST_RUNS: Final = 50


def history_page(histories: Sequence[SeriesHistory], metric: Metric) -> str:
    """Render the HTML page, with histories in the given order."""
    histories = with_short_names(histories)
    return render_page(
        *("history.html.j2", "report.css", "charts.css", "history.css"),
        title=changed_title(histories, metric),
        version=__version__,
        method=METHOD,
        rows=[_row(number, one) for number, one in enumerate(histories, start=1)],
        undrawn=max(0, len(histories) - MOST_CHARTS),
        last_runs=_LAST_RUNS,
    )


def _row(number: int, one: SeriesHistory) -> dict[str, Any]:
    metric = one.series.metric
    chart: str = ""
    if number <= MOST_CHARTS and one.points:
        chart = inline_chart(history_spec(one), title="", description=history_description(one))
    return {
        "anchor": f"history-{number}",
        "title": series_title(one),
        "counts": counts_text(one),
        "changes": [
            {"towards": change.towards(metric), "cells": change_cells(change, metric)[1:]}
            for change in one.changes
        ],
        "chart": chart,
        "runs": [
            (
                when_text(point),
                one_line(point.run),
                revision_text(point),
                value_text(metric, point.value),
                "untrusted, not analyzed" if point.untrusted else "",
            )
            for point in reversed(one.points[-_LAST_RUNS:])
        ],
        "more_runs": max(0, len(one.points) - _LAST_RUNS),
    }

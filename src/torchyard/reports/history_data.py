"""Histories for programs and pull requests: JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from io import StringIO
from typing import Any, Final

from torchyard.core.change import ChangePoint, SeriesHistory
from torchyard.core.records import encode
from torchyard.core.stored import Metric
from torchyard.reports.history_text import CHANGE_HEADINGS, change_cells
from torchyard.reports.history_wording import (
    METHOD,
    change_sentence,
    changed_title,
    counts_text,
    series_title,
)
from torchyard.reports.markdown_report import escaped
from torchyard.reports.plain_text import one_line

__all__ = ["HISTORY_SCHEMA", "changes_markdown", "history_csv", "history_json", "series_markdown"]

HISTORY_SCHEMA: Final = "torchyard.changes"
HISTORY_SCHEMA_VERSION: Final = 1
_CSV_HEADINGS: Final = (
    *("workload", "baseline", "candidate", "machine", "metric", "kind", "towards"),
    *("ratio", "low", "high", "p_value", "p_adjusted"),
    *("before_run", "before_revision", "before_started"),
    *("after_run", "after_revision", "after_started"),
)


def history_json(found: Sequence[SeriesHistory], *, points: bool) -> str:
    """Everything that is known, with the points if they are wanted."""
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
            for one in found
        ],
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def history_csv(found: Sequence[SeriesHistory]) -> str:
    """One row for each change."""
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_CSV_HEADINGS)
    for one in found:
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
            writer.writerow([_plain(cell) for cell in row])
    return page.getvalue()


def changes_markdown(found: Sequence[SeriesHistory], metric: Metric) -> str:
    """A table of all changes, for a pull request."""
    lines = [f"## {escaped(changed_title(found, metric))}", ""]
    headings = ("history", "towards", *CHANGE_HEADINGS[1:])
    changed = [one for one in found if one.changes]
    if changed:
        lines += [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for one in changed:
        for change in one.changes:
            cells = (series_title(one), *change_cells(change, metric))
            lines.append(f"| {' | '.join(map(escaped, cells))} |")
    return "\n".join([*lines, *([""] if changed else []), escaped(METHOD)]) + "\n"


def series_markdown(found: Sequence[SeriesHistory]) -> str:
    """Each series with its changes as a list."""
    lines: list[str] = []
    for one in found:
        lines += [f"## {escaped(series_title(one))}", "", escaped(counts_text(one)), ""]
        lines += [
            f"- {escaped(change_sentence(change, one.series.metric))}" for change in one.changes
        ] or ["No change found."]
        lines.append("")
    return "\n".join([*lines, escaped(METHOD)]) + "\n"


def _record(change: ChangePoint, one: SeriesHistory) -> dict[str, Any]:
    return {**encode(change), "towards": change.towards(one.series.metric)}


def _plain(cell: object) -> object:
    """A text that a spreadsheet does not take for a formula."""
    if not isinstance(cell, str):
        return cell
    text = one_line(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

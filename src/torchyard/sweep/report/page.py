"""The HTML report of a sweep: one file without network access or other files.

The template engine escapes all text, and the page forbids every script but its own.
`templates/sweep.html.j2` defines the layout. Includes the p-value chart of a null sweep. Loads
jinja2 when a page is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

from torchyard.core.comparison import Verdict
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.chart_layout import speedup_axis
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.presentation.safe_text import one_line, plain_lines
from torchyard.presentation.vega import inline_chart
from torchyard.presentation.wording import ABSENT, MARKS, number_text, p_value_text
from torchyard.sweep.model import FalseAlarms, MeanSpeedup, SweepGroup, SweepRow, SweepSummary
from torchyard.sweep.report.text import (
    alarm_lines,
    as_selected,
    break_even_text,
    compile_text,
    end_mark,
    end_text,
    ends_text,
    family_lines,
    group_name,
    mean_cell,
    memory_text,
    passed_text,
    reasons_of,
    row_name,
    selection_text,
    setup_line,
    speedup_cell,
    sweep_line,
    with_short_names,
)
from torchyard.sweep.rows import ENDS_WITH_SPEEDUP

_WIDTH, _HEIGHT = 420, 150
_GAP: Final = 0.006


def p_values_spec(alarms: FalseAlarms) -> dict[str, Any]:
    """Return the histogram of p-values, with a line at the uniform distribution."""
    bins = len(alarms.bins)
    bars = [
        {"from": place / bins + _GAP, "to": (place + 1) / bins - _GAP, "count": count, "zero": 0}
        for place, count in enumerate(alarms.bins)
    ]
    uniform = alarms.comparisons / bins
    x = {
        "field": "from",
        "type": "quantitative",
        "title": "p-value",
        "scale": {"domain": [0, 1], "nice": False},
        "axis": {"tickCount": 10, "grid": False},
    }
    y = {
        "field": "count",
        "type": "quantitative",
        "title": "comparisons",
        "scale": {"domain": [0, max(*alarms.bins, uniform, 1)]},
        "axis": {"tickMinStep": 1, "tickCount": 4, "format": "d", "domain": False},
    }
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "layer": [
            {
                "data": {"values": bars},
                "mark": {"type": "rect", "color": "var(--candidate)"},
                "encoding": {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "zero"}},
            },
            {
                "data": {"values": [{"uniform": uniform}]},
                "mark": {"type": "rule", "color": "var(--text)", "strokeDash": [4, 3]},
                "encoding": {"y": {"field": "uniform", "type": "quantitative"}},
            },
        ],
    }


def p_values_description(alarms: FalseAlarms) -> str:
    """Describe the chart for screen readers."""
    bins = len(alarms.bins)
    counts = ", ".join(
        f"{count} up to {(place + 1) / bins:.1f}" for place, count in enumerate(alarms.bins)
    )
    return f"p-values of {alarms.comparisons} comparisons: {counts}. Uniform: {alarms.comparisons / bins:.1f} each."


_TAIL_LINES: Final = 40
_CHOICES: Final = ("verdict", "suite", "mode", "precision", "candidate")


def sweep_page(summary: SweepSummary, *, links: Mapping[str, str] | None = None) -> str:
    """Render the page. `links` are file names of run reports in the same folder, by run id."""
    summary = with_short_names(summary)
    style = asset("report.css") + asset("run.css") + asset("charts.css") + asset("sweep.css")
    theme, script = asset("theme.js"), asset("sweep.js")
    alarms = summary.false_alarms
    plotted = [row for row in summary.rows if _numbers(row)]
    # An untrusted interval must not widen the axis of the others.
    fitted = [row for row in plotted if row.trusted] or plotted
    numbers = chain.from_iterable(map(_numbers, fitted))
    scales = _cost_scales(summary.rows)
    kinds = _kinds(summary.groups)
    return (
        template_engine()
        .get_template("sweep.html.j2")
        .render(
            summary=summary,
            title=one_line(summary.name),
            line=sweep_line(summary),
            setup=setup_line(summary),
            counts=_counts(summary.rows),
            family=family_lines(summary),
            candidates=[one_line(name) for name in summary.candidates],
            matrix=[
                *map(_matrix_row, kinds),
                *([_matrix_row(summary.totals)] if summary.totals else []),
            ],
            costs=[
                _cost_row(group)
                for group in (*summary.groups, *summary.totals)
                if group.compiled or group.memory_rows
            ],
            alarms=alarm_lines(alarms, summary.margin) if alarms else [],
            within=alarms is not None and alarms.within,
            p_chart=inline_chart(
                p_values_spec(alarms),
                title="Histogram of p-values; the dashed line is the uniform distribution",
                description=p_values_description(alarms),
            )
            if alarms is not None and alarms.comparisons
            else "",
            extremes=[
                (heading, selection_text(rows), [_row(as_selected(row), scales) for row in rows])
                for heading, rows in (("Fastest", summary.best), ("Slowest", summary.worst))
                if rows
            ],
            sections=[_section(groups, summary.rows, scales) for groups in kinds],
            costs_shown=[{"key": key, "title": _COSTS[key]} for key in scales],
            choices=_choices(summary.rows),
            failures=[_failure(row, reason) for row, reason in reasons_of(summary.not_passed)],
            axis=speedup_axis([1.0, *numbers]),
            margin=summary.margin,
            margin_text=format_percent(summary.margin),
            confidence=f"{100 * (1 - summary.alpha):g}%",
            runs=[
                {
                    "text": " · ".join(one_line(t) for t in (run.name, run.precision, run.id) if t),
                    "state": one_line(run.state),
                    "link": quote((links or {}).get(run.id, "")),
                }
                for run in summary.runs
            ],
            style=style,
            theme_script=theme,
            script=script,
            style_hash=fingerprint(style),
            script_hashes=[fingerprint(one) for one in (theme, script)],
        )
    )


def _kinds(groups: Sequence[SweepGroup]) -> list[list[SweepGroup]]:
    """Group by suite, mode, precision and baseline."""
    kinds: dict[tuple[str, ...], list[SweepGroup]] = {}
    for group in groups:
        key = group.key
        kinds.setdefault((key.suite, key.mode, key.precision, key.baseline), []).append(group)
    return list(kinds.values())


def _matrix_row(groups: Sequence[SweepGroup]) -> dict[str, Any]:
    cells = {one_line(group.key.candidate): _matrix_cell(group) for group in groups}
    return {"name": group_name(groups[0].key), "cells": cells, "total": not groups[0].key.suite}


def _matrix_cell(group: SweepGroup) -> dict[str, str]:
    mean, own = group.common, group.own
    return {
        "mean": f"{number_text(mean.speedup)}x" if mean else ABSENT,
        "interval": f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}]"
        if mean
        else "no common workload",
        "of": f"of {format_count(mean.workloads, 'common workload')}" if mean else "",
        "untrusted": f"{group.untrusted} untrusted excluded" if group.untrusted else "",
        "tone": _tone(mean),
        "own": mean_cell(own) if own and (mean is None or own.workloads != mean.workloads) else "",
        "not_wrong": mean_cell(group.not_wrong) if group.not_wrong else "",
        "passed": passed_text(group),
        "rest": ends_text(group),
    }


def _tone(mean: MeanSpeedup | None) -> str:
    if mean is None or mean.interval.covers(1.0):
        return "undecided"
    return "faster" if mean.speedup > 1.0 else "slower"


def _row_tone(row: SweepRow) -> str:
    if row.end == "passed" or row.verdict is Verdict.UNTRUSTED:
        return row.verdict.value
    return {
        "not-finished": "undecided",
        "provisional": "undecided provisional",
        "wrong": "wrong",
    }.get(row.end, "failed")


def _cost_row(group: SweepGroup) -> dict[str, str]:
    return {
        "name": group_name(group.key),
        "candidate": one_line(group.key.candidate),
        "compile": compile_text(group),
        "memory": memory_text(group),
        "break_even": break_even_text(group),
    }


def _section(
    groups: Sequence[SweepGroup], rows: Sequence[SweepRow], scales: Mapping[str, float]
) -> dict[str, Any]:
    key = groups[0].key
    own = [
        row
        for row in rows
        if (row.suite, row.mode, row.precision, row.baseline)
        == (key.suite, key.mode, key.precision, key.baseline)
    ]
    own.sort(key=lambda row: -(row.speedup or 0.0) if _numbers(row) else float("inf"))
    return {
        "name": group_name(key),
        "baseline": one_line(key.baseline),
        "means": [
            (one_line(group.key.candidate), mean_cell(group.common, untrusted=group.untrusted))
            for group in groups
        ],
        "rows": [_row(row, scales) for row in own],
    }


def _word(row: SweepRow) -> str:
    if row.end == "passed" or row.verdict is Verdict.UNTRUSTED:
        return row.verdict.value
    return end_text(row.end)


def _row(row: SweepRow, scales: Mapping[str, float]) -> dict[str, Any]:
    plotted, (speedup, interval) = bool(_numbers(row)), speedup_cell(row)
    shown = row.verdict if row.end in {"wrong", "provisional", *ENDS_WITH_SPEEDUP} else None
    return {
        "name": row_name(row),
        "label": one_line(row.workload),
        "suite": one_line(row.suite),
        "mode": row.mode,
        "precision": one_line(row.precision),
        "candidate": one_line(row.candidate),
        "verdict": row.verdict.value,
        "tone": _row_tone(row),
        "mark": end_mark(row),
        "word": _word(row),
        "speedup": speedup if shown else ABSENT,
        "interval": interval if shown else "",
        "value": row.speedup if plotted else "",
        "estimate": row,
        "plotted": plotted,
        "baseline_time": ABSENT if row.baseline_ns is None else format_duration(row.baseline_ns),
        "time": ABSENT if row.candidate_ns is None else format_duration(row.candidate_ns),
        "p": p_value_text(row.p_adjusted),
        "reason": one_line(row.reason),
        "costs": {key: _cost(row, key, scales[key]) for key in scales},
    }


_COSTS: Final = {
    "compile_s": "Compile time",
    "memory_ratio": "Memory",
    "graph_breaks": "Graph breaks",
}
"""Field of a row and title of its column."""


def _cost_scales(rows: Sequence[SweepRow]) -> dict[str, float]:
    """Return the largest value of each cost that some row has."""
    values = {
        key: [value for row in rows if (value := getattr(row, key)) is not None] for key in _COSTS
    }
    return {key: max(numbers) for key, numbers in values.items() if numbers}


def _cost(row: SweepRow, key: str, largest: float) -> dict[str, Any]:
    """Return the text and the share of the bar; a cost of zero has an empty bar."""
    value = getattr(row, key)
    if value is None:
        return {"text": ABSENT, "share": None}
    texts = {
        "compile_s": f"{value:.3g} s",
        "memory_ratio": f"{value:.2f}x",
        "graph_breaks": str(value),
    }
    return {"text": texts[key], "share": value / largest if largest else 0.0}


def _numbers(row: SweepRow) -> list[float]:
    """Return the plotted numbers of a row; empty if its speedup is not usable."""
    if row.end not in ENDS_WITH_SPEEDUP or row.speedup is None:
        return []
    return [row.speedup, *([row.interval.low, row.interval.high] if row.interval else [])]


def _failure(row: SweepRow, reason: str) -> dict[str, str]:
    tries = f", {row.tries} attempts" if row.tries > 1 else ""
    return {
        "name": row_name(row),
        "tone": _row_tone(row),
        "mark": end_mark(row),
        "word": end_text(row.end) + tries,
        "reason": reason,
        "log": one_line(row.log),
        "tail": plain_lines(row.log_tail, last=_TAIL_LINES) if row.log_tail else "",
    }


def _counts(rows: Sequence[SweepRow]) -> list[tuple[str, str, int]]:
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    return [(verdict.value, MARKS[verdict], count) for verdict, count in counts.items() if count]


def _choices(rows: Sequence[SweepRow]) -> list[tuple[str, list[str]]]:
    """Return the filters of the forest plot that have more than one value."""
    choices = [
        (name, list(dict.fromkeys(one_line(str(getattr(row, name))) for row in rows)))
        for name in _CHOICES
    ]
    return [(name, values) for name, values in choices if len(values) > 1]

"""A sweep in Markdown, for a pull request: short above the fold, everything that failed below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchyard.core.sweep_summary import SweepGroup, SweepRow, SweepSummary
from torchyard.core.units import format_duration
from torchyard.reports.markdown_report import escaped
from torchyard.reports.sweep_wording import (
    alarm_lines,
    as_selected,
    break_even_text,
    compile_text,
    end_mark,
    end_text,
    ends_text,
    group_name,
    mean_cell,
    memory_text,
    not_wrong_lines,
    passed_text,
    reasons_of,
    row_name,
    selection_text,
    speedup_cell,
    sweep_line,
    verdict_lines,
)
from torchyard.reports.wording import ABSENT, verdict_text

__all__ = ["sweep_markdown"]

_ROW_HEADS: Final = (
    "workload",
    "precision",
    "candidate",
    "speedup",
    "p",
    "verdict",
    "baseline",
    "time",
)


def sweep_markdown(summary: SweepSummary) -> str:
    """Tables that read well as text too."""
    lines = [f"## {escaped(summary.name)}", "", f"{escaped(sweep_line(summary))}.", ""]
    for doubt in summary.doubts:
        lines += [f"> **{escaped(doubt)}**", ""]
    alarms = summary.false_alarms
    if alarms is not None:
        answer, *rest = alarm_lines(alarms, summary.margin)
        lines += ["### False alarms of this machine", "", f"**{escaped(answer)}**", ""]
        lines += [f"- {escaped(line)}" for line in rest]
        lines.append("")
        if alarms.comparisons:
            bins = len(alarms.bins)
            heads = [f"p < {(place + 1) / bins:.1f}" for place in range(bins)]
            lines += [
                *_table(heads, [[str(count) for count in alarms.bins]], right=range(bins)),
                "",
            ]
    groups = [*summary.groups, *summary.totals]
    lines += _table(
        ("suite", "candidate", "passed", "mean over common workloads", "mean of all it passed"),
        [_group_cells(group) for group in groups],
        right=(3, 4),
    )
    whole = not_wrong_lines(groups)
    if whole:
        lines += ["", *(f"- {escaped(line)}" for line in whole)]
    costs = [group for group in groups if group.compiled or group.memory_rows]
    if costs:
        lines += [
            "",
            *_table(
                ("suite", "candidate", "compiling", "memory", "break-even"),
                [_cost_cells(group) for group in costs],
                right=(3,),
            ),
        ]
    for line in verdict_lines(summary):
        lines += ["", f"{escaped(line)}."]
    for heading, rows in (("Fastest", summary.best), ("Slowest", summary.worst)):
        if rows:
            lines += ["", f"**{heading}**{selection_text(rows)}", ""]
            lines += _table(
                _ROW_HEADS, [_row_cells(as_selected(row)) for row in rows], right=(3, 4, 6, 7)
            )
    failed = summary.not_passed
    if failed:
        lines += [
            "",
            f"<details><summary>Did not pass: {len(failed)} of {len(summary.rows)}</summary>",
        ]
        lines += ["", *_failures(failed), "", "</details>"]
    return "\n".join(lines) + "\n"


def _group_cells(group: SweepGroup) -> list[str]:
    passed, rest = passed_text(group), ends_text(group)
    return [
        group_name(group.key),
        group.key.candidate,
        f"{passed}: {rest}" if rest else passed,
        mean_cell(group.common, untrusted=group.untrusted),
        mean_cell(group.own, untrusted=group.untrusted),
    ]


def _cost_cells(group: SweepGroup) -> list[str]:
    return [
        group_name(group.key),
        group.key.candidate,
        compile_text(group),
        memory_text(group),
        break_even_text(group),
    ]


def _row_cells(row: SweepRow) -> list[str]:
    times = [
        ABSENT if t is None else format_duration(t) for t in (row.baseline_ns, row.candidate_ns)
    ]
    p_value = ABSENT if row.p_adjusted is None else f"{row.p_adjusted:.3g}"
    speedup = " ".join(filter(None, speedup_cell(row)))
    names = [row.workload, row.precision, row.candidate]
    return [*names, speedup, p_value, verdict_text(row.verdict), *times]


def _failures(rows: Sequence[SweepRow]) -> list[str]:
    return [
        f"- {end_mark(row)} **{end_text(row.end)}** {escaped(row_name(row))}: {escaped(reason)}"
        for row, reason in reasons_of(rows)
    ]


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    rule = ["---:" if column in right else "---" for column in range(len(heads))]
    return [
        "| " + " | ".join(escaped(head) for head in heads) + " |",
        "| " + " | ".join(rule) + " |",
        *("| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows),
    ]

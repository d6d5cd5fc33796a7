"""A sweep for a terminal: what each suite says, the extremes, and everything that did not pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from torchyard.core.sweep_summary import FalseAlarms, SweepGroup, SweepRow, SweepSummary
from torchyard.reports.plain_text import one_line
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

__all__ = ["sweep_text"]

_BAR: Final = 30


def sweep_text(summary: SweepSummary) -> str:
    """Plain text; nothing from outside in it acts on a terminal."""
    lines = [one_line(summary.name), sweep_line(summary), ""]
    lines += [f"! {one_line(doubt)}" for doubt in summary.doubts]
    lines += [""] * bool(summary.doubts)
    if summary.false_alarms is not None:
        lines += ["false alarms of this machine", *_alarms(summary), ""]
    groups = [*summary.groups, *summary.totals]
    heads = ("suite", "candidate", "passed", "common workloads", "all it passed", "did not pass")
    lines += _aligned([heads, *_named_once(_group_cells(group) for group in groups)])
    lines += not_wrong_lines(groups)
    costs = [group for group in groups if group.compiled or group.memory_rows]
    if costs:
        cost_heads = ("cost", "candidate", "compiling", "memory", "break-even")
        lines += ["", *_aligned([cost_heads, *_named_once(_cost_cells(group) for group in costs)])]
    lines += ["", *verdict_lines(summary)]
    for heading, rows in (("fastest", summary.best), ("slowest", summary.worst)):
        if rows:
            lines += [
                "",
                f"{heading}{selection_text(rows)}:",
                *_indented(_aligned([_row_cells(as_selected(row)) for row in rows])),
            ]
    failed = summary.not_passed
    if failed:
        lines += ["", f"did not pass ({len(failed)} of {len(summary.rows)}):", *_failures(failed)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _group_cells(group: SweepGroup) -> tuple[str, ...]:
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        passed_text(group),
        mean_cell(group.common, untrusted=group.untrusted),
        mean_cell(group.own, untrusted=group.untrusted),
        ends_text(group),
    )


def _cost_cells(group: SweepGroup) -> tuple[str, ...]:
    return (
        group_name(group.key),
        one_line(group.key.candidate),
        compile_text(group),
        memory_text(group),
        break_even_text(group),
    )


def _named_once(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """A name that is that of the row above is left out."""
    above = ""
    for name, *cells in rows:
        yield ("" if name == above else name, *cells)
        above = name


def _row_cells(row: SweepRow) -> tuple[str, ...]:
    speedup, interval = speedup_cell(row)
    return (verdict_text(row.verdict), speedup, interval or ABSENT, row_name(row))


def _failures(rows: Sequence[SweepRow]) -> Iterator[str]:
    for row, reason in reasons_of(rows):
        yield f"  {end_mark(row)} {end_text(row.end)}  {row_name(row)}: {reason}"
        if row.log:
            yield f"      log: {one_line(row.log)}"


def _alarms(summary: SweepSummary) -> list[str]:
    alarms = summary.false_alarms
    if alarms is None:
        return []
    lines = alarm_lines(alarms, summary.margin)
    return _indented([*lines, *_histogram(alarms)])


def _histogram(alarms: FalseAlarms) -> Iterator[str]:
    """Each tenth of the p-values as a bar; even ones are all as long as the mark."""
    if not alarms.comparisons:
        return
    most = max(*alarms.bins, 1)
    bins = len(alarms.bins)
    for place, count in enumerate(alarms.bins):
        bar = "#" * round(_BAR * count / most)
        yield f"p {place / bins:.1f} to {(place + 1) / bins:.1f} {count:>5} {bar}"
    yield f"even: {alarms.comparisons / bins:.1f} in each"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]

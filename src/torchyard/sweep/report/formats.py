"""Formats of a sweep summary: the table of formats, Markdown, JSON, and the redacted copy.

Markdown is meant for a pull request: a short summary first, failures in a collapsed section. In the
redacted copy, host names, users, paths and variable values are redacted by the same rules as in runs
(`bench/report/sharing.py`), including logs of cells without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from torchyard.bench.report.sharing import redactor_of
from torchyard.core.records import encode, nearest_hint
from torchyard.core.units import format_duration
from torchyard.errors import UsageError
from torchyard.presentation.redaction import Redactor
from torchyard.presentation.safe_text import escaped
from torchyard.presentation.tables import escaped_cells, json_text, markdown_table
from torchyard.presentation.wording import ABSENT, verdict_text
from torchyard.results.run_reader import Run
from torchyard.sweep.model import GroupKey, SummarizedRun, SweepGroup, SweepRow, SweepSummary
from torchyard.sweep.report.page import sweep_page
from torchyard.sweep.report.text import (
    alarm_lines,
    as_selected,
    cost_cells,
    end_mark,
    end_text,
    ends_text,
    group_name,
    mean_cell,
    not_wrong_lines,
    passed_text,
    provisional_text,
    reasons_of,
    row_name,
    selection_text,
    setup_line,
    speedup_cell,
    sweep_line,
    sweep_text,
    verdict_lines,
    with_short_names,
)

Record = TypeVar("Record", SweepRow, SweepSummary, SummarizedRun, GroupKey)
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
    """Render the summary as Markdown."""
    summary = with_short_names(summary)
    lines = [f"## {escaped(summary.name)}", "", f"{escaped(sweep_line(summary))}.", ""]
    setup = setup_line(summary)
    lines += [f"{escaped(setup)}.", ""] if setup else []
    for doubt in summary.doubts:
        lines += [f"> **{escaped(doubt)}**", ""]
    alarms = summary.false_alarms
    if alarms is not None:
        answer, *rest = alarm_lines(alarms, summary.margin)
        lines += ["### False alarm rate of this machine", "", f"**{escaped(answer)}**", ""]
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
        ("suite", "candidate", "passed", "mean over common workloads", "mean over all passed"),
        [_group_cells(group) for group in groups],
        right=(3, 4),
    )
    not_wrong = not_wrong_lines(groups)
    if not_wrong:
        lines += ["", *(f"- {escaped(line)}" for line in not_wrong)]
    costs = [group for group in groups if group.compiled or group.memory_rows]
    if costs:
        lines += [
            "",
            *_table(
                ("suite", "candidate", "compilation", "memory", "break-even"),
                [cost_cells(group) for group in costs],
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
    if summary.provisional:
        lines += ["", f"**{escaped(provisional_text(summary).capitalize())}**", ""]
        lines += _table(
            _ROW_HEADS, [_row_cells(row) for row in summary.provisional], right=(3, 4, 6, 7)
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
    return markdown_table([escaped(head) for head in heads], escaped_cells(rows), right=right)


SCHEMA: Final = "torchyard.sweep-summary"
SCHEMA_VERSION: Final = 1
"""Incremented when a key changes its meaning or is removed, not when keys are added."""


def sweep_json(summary: SweepSummary) -> str:
    """Render the summary as JSON; non-finite numbers become null."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **encode(summary),
        "groups": [_group_json(group) for group in summary.groups],
        "totals": [_group_json(group) for group in summary.totals],
    }
    for record, row in zip(document["rows"], summary.rows, strict=True):
        record.update(state=row.verdict.value, trusted=row.trusted)
    for name in ("best", "worst"):
        rows = getattr(summary, name)
        document[name] = [summary.rows.index(row) for row in rows]
    alarms = summary.false_alarms
    if alarms is not None:
        document["false_alarms"]["within"] = alarms.within
    return json_text(document)


def _group_json(group: SweepGroup) -> dict[str, Any]:
    return {
        **encode(group.key),
        **{name: value for name, value in encode(group).items() if name != "key"},
        "passed": group.passed,
        "pass_rate": group.pass_rate,
        "ends": dict(group.ends),
        "verdicts": {verdict.value: count for verdict, count in group.verdicts},
    }


def shared_summary(summary: SweepSummary, runs: Iterable[Run]) -> SweepSummary:
    """Return the summary with redacted texts."""
    cleaner = redactor_of(runs)
    rows = {id(row): _redacted(row, cleaner, *_PRIVATE_TEXTS) for row in summary.rows}
    return replace(
        _redacted(summary, cleaner, "name", "revision"),
        rows=tuple(rows[id(row)] for row in summary.rows),
        groups=tuple(_redacted_group(group, cleaner) for group in summary.groups),
        totals=tuple(_redacted_group(group, cleaner) for group in summary.totals),
        best=tuple(rows[id(row)] for row in summary.best),
        worst=tuple(rows[id(row)] for row in summary.worst),
        runs=tuple(_redacted(run, cleaner, "id", "name") for run in summary.runs),
        machines=tuple(map(cleaner.clean, summary.machines)),
        torch=tuple(map(cleaner.clean, summary.torch)),
        doubts=tuple(map(cleaner.clean, summary.doubts)),
    )


_PRIVATE_TEXTS: Final = (
    *("cell", "suite", "workload", "baseline", "candidate"),
    *("reason", "log", "log_tail", "run"),
)
"""Fields of a row with text from outside."""


def _redacted(record: Record, cleaner: Redactor, *names: str) -> Record:
    texts: dict[str, Any] = {name: cleaner.clean(getattr(record, name)) for name in names}
    return replace(record, **texts)


def _redacted_group(group: SweepGroup, cleaner: Redactor) -> SweepGroup:
    return replace(group, key=_redacted(group.key, cleaner, "suite", "baseline", "candidate"))


SWEEP_FORMATS: Final[Mapping[str, Callable[[SweepSummary], str]]] = {
    "text": sweep_text,
    "markdown": sweep_markdown,
    "json": sweep_json,
    "html": sweep_page,
}


def render_sweep(
    summary: SweepSummary, form: str, *, links: Mapping[str, str] | None = None
) -> str:
    """Render the summary in that format. `links` (see `reports_beside`) are for HTML only."""
    if form not in SWEEP_FORMATS:
        raise UsageError(
            f"{form!r} is not a format of sweep reports",
            hint=nearest_hint(form, list(SWEEP_FORMATS), what="format"),
        )
    return sweep_page(summary, links=links) if form == "html" else SWEEP_FORMATS[form](summary)


def reports_beside(summary: SweepSummary, folder: Path) -> dict[str, str]:
    """Return the file names of run reports (`ID.html`) that exist in the folder, by run id."""
    names = {run.id: f"{run.id}.html" for run in summary.runs if "/" not in run.id}
    return {run: name for run, name in names.items() if (folder / name).is_file()}

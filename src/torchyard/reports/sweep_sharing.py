"""A sweep's summary for others: without host names, users, paths and values of variables.

What is private is known from the sweep's runs (`sharing.cleaner_of`); texts that a summary took from
elsewhere, such as the logs of cells that have no run, are cleaned by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchyard.core.sweep_summary import SweepGroup, SweepRow, SweepSummary
from torchyard.reports.private_text import PrivateText
from torchyard.reports.sharing import cleaner_of
from torchyard.results.run_reader import Run

__all__ = ["shared_summary"]


def shared_summary(summary: SweepSummary, runs: Iterable[Run]) -> SweepSummary:
    """The same summary with every text cleaned; numbers stay."""
    cleaner = cleaner_of(runs)
    rows = {id(row): _row(row, cleaner) for row in summary.rows}
    return replace(
        summary,
        name=cleaner.clean(summary.name),
        revision=cleaner.clean(summary.revision),
        rows=tuple(rows[id(row)] for row in summary.rows),
        groups=tuple(_group(group, cleaner) for group in summary.groups),
        totals=tuple(_group(group, cleaner) for group in summary.totals),
        best=tuple(rows[id(row)] for row in summary.best),
        worst=tuple(rows[id(row)] for row in summary.worst),
        runs=tuple(
            replace(run, id=cleaner.clean(run.id), name=cleaner.clean(run.name))
            for run in summary.runs
        ),
        doubts=tuple(map(cleaner.clean, summary.doubts)),
    )


def _row(row: SweepRow, cleaner: PrivateText) -> SweepRow:
    return replace(
        row,
        cell=cleaner.clean(row.cell),
        suite=cleaner.clean(row.suite),
        workload=cleaner.clean(row.workload),
        baseline=cleaner.clean(row.baseline),
        candidate=cleaner.clean(row.candidate),
        reason=cleaner.clean(row.reason),
        log=cleaner.clean(row.log),
        log_tail=cleaner.clean(row.log_tail),
        run=cleaner.clean(row.run),
    )


def _group(group: SweepGroup, cleaner: PrivateText) -> SweepGroup:
    key = group.key
    cleaned = {
        name: cleaner.clean(getattr(key, name)) for name in ("suite", "baseline", "candidate")
    }
    return replace(group, key=replace(key, **cleaned))

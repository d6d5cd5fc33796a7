"""A run for display: user files have short names, and rows have a command that repeats them.

`torchyard bench --row RUN:N` repeats one comparison of an earlier run; N is the row of its table.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchyard.core.block import Block
from torchyard.core.short_names import short_labels, with_short_workloads
from torchyard.core.study import Study, Workload
from torchyard.errors import UsageError
from torchyard.results.directory import runs_home
from torchyard.results.run_reader import Run


@dataclass(frozen=True, kw_only=True)
class _ShownRun(Run):
    """A run whose samples have the labels that are shown."""

    original: Run
    labels: Mapping[str, str]

    def blocks(self, workload: Workload | None = None) -> Iterator[tuple[str, Block]]:
        for label, block in self.original.blocks():
            shown = self.labels.get(label, label)
            if workload is None or shown == workload.label:
                yield shown, block

    def launches(self) -> list[dict[str, Any]]:
        return self.original.launches()


def shown_run(run: Run) -> Run:
    """Return the run with short names of user files; the study keeps their paths."""
    labels = short_labels([one.workload for one in run.comparisons])
    if all(label == shown for label, shown in labels.items()):
        return run
    return _ShownRun(
        folder=run.folder,
        id=run.id,
        state=run.state,
        info=run.info,
        study=run.study,
        comparisons=with_short_workloads(run.comparisons),
        torn_lines=run.torn_lines,
        original=run,
        labels=labels,
    )


def row_command(run: Run, number: int | str) -> str:
    """Return the command that repeats a row; empty if the run has none, such as runs of the API."""
    command = run.info.get("command")
    is_api = isinstance(command, list) and command[:1] == ["torchyard.compare"]
    if is_api or run.info.get("sweep"):
        return ""
    is_stored = run.folder.parent == runs_home() or run.info.get("shared")
    return f"torchyard bench --row {run.id if is_stored else shlex.quote(str(run.folder))}:{number}"


def study_of_row(run: Run, number: int) -> Study:
    """Return the study of a single row, with the budget and the settings of its run."""
    rows = run.comparisons
    if not 1 <= number <= len(rows):
        raise UsageError(
            f"--row: the run {run.id} has no row {number}",
            hint=f"its rows are 1 to {len(rows)}" if rows else "it has no comparison",
        )
    row = rows[number - 1]
    study = run.study
    candidates = tuple(one for one in study.candidates if one.name == row.candidate)
    workloads = tuple(one for one in study.workloads if one.label == row.workload.label)
    if study.baseline.name != row.baseline or not candidates or not workloads:
        raise UsageError(
            f"--row: row {number} of {run.id} is not part of its study",
            why="the run was joined from others",
            hint="repeat a row of one of these",
        )
    return replace(study, candidates=candidates, workloads=workloads)

"""Repeat one comparison of an earlier run: `torchyard bench --row RUN:N`, N is the row of its table."""

from __future__ import annotations

import shlex
from dataclasses import replace

from torchyard.core.study import Study
from torchyard.errors import UsageError
from torchyard.results.directory import runs_home
from torchyard.results.run_reader import Run


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

"""`torchyard bench --row RUN:N`: the study of one row of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import click

from torchyard.bench.commands.options import checked_numbers
from torchyard.bench.repetition import study_of_row
from torchyard.cli.options import given_options
from torchyard.core.study import Study
from torchyard.errors import UsageError
from torchyard.results.commands.options import find_run
from torchyard.results.run_reader import read_run

_BUDGET: Final = ("time", "precision_goal", "margin", "max_launches")
_ALLOWED: Final = {
    *("row", "run_dir", "revision", "notes", "replace", "html", "csv", "dry_run", "quiet"),
    *("tune", "tune_profile", "cores", *_BUDGET),
}
"""Options that may change: how long to measure, and where results go."""


def study_of_option(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study of the row; options of the time budget override those of the run."""
    given = given_options(click.get_current_context(), options, but=_ALLOWED)
    if files or given:
        raise UsageError(
            f"{files[0] if files else given[0]} cannot be combined with --row",
            why="the row is repeated with the settings of its run",
            hint="remove it; --time, --launches, --margin and --precision-goal may be given",
        )
    text, _, number = options["row"].rpartition(":")
    if not text or not number.isdecimal():
        raise UsageError(
            f"--row: {options['row']!r} is not a row of a run",
            hint="write RUN:N, such as latest:1; `torchyard report` shows the rows",
        )
    study = study_of_row(read_run(find_run(text)), int(number[:9]))
    budget = replace(study.budget, **checked_numbers(options, *_BUDGET))
    least = min(budget.min_launches, budget.max_launches)
    return replace(study, budget=replace(budget, min_launches=least))

"""Run a sweep on the command line: progress, messages, results and the exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchyard.bench.commands.execution import exit_code_of
from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.output import data_console, print_data, print_json, print_message, printable
from torchyard.core.units import format_count
from torchyard.errors import TimeLimit, Untrustworthy, WorkerFailed
from torchyard.sweep.commands.cell_progress import counts_text, show_sweep
from torchyard.sweep.execution import SweepExecution
from torchyard.sweep.model import CellStatus


@dataclass(kw_only=True)
class SweepSession(SweepExecution):
    """One execution of a sweep that shows its progress and prints its results."""

    quiet: bool = False

    def run_with_progress(self) -> int:
        """Drive the sweep to its end and return the exit code."""
        for note in self.notes:
            print_message(f"note: {note}")
        try:
            with show_sweep(self.folder.folder, quiet=self.quiet) as listener:
                self.run(listener)
        except KeyboardInterrupt:
            message = f"; {self.detach_message}" if self.detach_message else ""
            print_message(f"interrupted: {counts_text(self.statuses)}{message}")
        else:
            if not any(status.is_open for status in self.statuses):
                return self._exit_code()
            if self.out_of_time:
                return self._end_without_all_cells()
            # Jobs were cancelled, or other processes run cells: the next driver resumes them.
            print_message(f"stopped: {counts_text(self.statuses)}")
            for line in _running_elsewhere(self.statuses):
                print_message(line)
        print_message(f"resume with: {self.resume_command}")
        return INTERRUPTED

    def _end_without_all_cells(self) -> int:
        """Say which cells have no launch after the time budget, and return the exit code."""
        without = sum(status.is_open for status in self.statuses)
        print_message(
            f"the time budget was used up: {without} of {format_count(len(self.statuses), 'cell')} "
            "without a finished launch"
        )
        print_message(f"resume with: {self.resume_command}")
        return self._exit_code() if self.runs else TimeLimit.exit_code

    @property
    def resume_command(self) -> str:
        """The shell command that resumes this sweep."""
        return f"torchyard sweep --resume {shlex.quote(str(self.folder.folder))}"

    def print_json(self) -> None:
        """Print the sweep as one JSON object."""
        from torchyard.core.records import encode

        comparisons: list[dict[str, Any]] = [
            {"run": run.id, "label": row.workload.label, **encode(row)}
            for run in self.runs.values()
            for row in run.comparisons
        ]
        print_json(
            {
                "folder": str(self.folder.folder),
                "name": self.folder.plan.name,
                "shard": list(self.folder.plan.shard),
                "null": self.folder.plan.null,
                "cells": [
                    # Without the study, which `sweep show --json` includes.
                    {
                        "id": status.cell.id,
                        "label": status.cell.label,
                        "state": status.state,
                        "text": status.text,
                        "run": status.run,
                        "attempts": status.attempts,
                    }
                    for status in self.statuses
                ],
                "runs": {name: run.id for name, run in self.runs.items()},
                "comparisons": comparisons,
            }
        )

    def print_table(self) -> None:
        """Print the verdicts of each run and the summary of the sweep."""
        from torchyard.bench.report.text import comparison_table
        from torchyard.sweep.report.text import sweep_text

        console = data_console()
        for name, run in self.runs.items():
            goal = run.study.budget.precision_goal
            console.print(f"{name}: run {run.id}", markup=False, style="bold", soft_wrap=True)
            console.print(comparison_table(run.comparisons, precision_goal=goal))
            console.print()
        print_data(printable(sweep_text(self.summary())))

    def _exit_code(self) -> int:
        code = exit_code_of([row for run in self.runs.values() for row in run.comparisons])
        if code == WorkerFailed.exit_code:
            print_message("every comparison failed")
        elif code == Untrustworthy.exit_code:
            print_message(
                "some results are untrusted: see the notes and `torchyard explain untrusted`"
            )
        return code


def _running_elsewhere(statuses: Sequence[CellStatus]) -> list[str]:
    """Return messages about cells that other processes run."""
    running = [one for one in statuses if one.state in ("running", "paused") and one.attempts]
    if not running:
        return []
    places = ", ".join(dict.fromkeys(one.attempts[-1].place or "unknown" for one in running))
    return [
        f"{len(running)} cells are being run by other processes ({places})",
        "hint: if those processes have ended, add --take-over to measure their cells here",
    ]

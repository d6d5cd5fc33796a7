"""Execute a sweep: run open cells with progress, join them, and choose the exit code.

Also defines the command that an executor runs for a cell.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.bench.commands.execution import exit_code_of
from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.output import data_console, print_data, print_json, print_message, printable
from torchyard.core.units import format_count
from torchyard.errors import TimeLimit, Untrustworthy, WorkerFailed
from torchyard.sweep.commands.cell_progress import counts_text, show_sweep
from torchyard.sweep.model import CellStatus

if TYPE_CHECKING:
    from torchyard.results.run_reader import Run
    from torchyard.sweep.executors.interface import Executor
    from torchyard.sweep.folder import SweepFolder
    from torchyard.sweep.model import SweepPlan


def command_of_cell(folder: SweepFolder, cell: str) -> list[str]:
    """Return the command of a cell, with this interpreter, which cluster nodes must see too."""
    return [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell]


def executor_of(
    folder: SweepFolder,
    *,
    first_launch_s: Mapping[str, float] | None = None,
    deadline_s: float = math.inf,
) -> Executor:
    """Open the executor of the sweep's plan.

    `first_launch_s` has the expected durations of first launches by cell, where known; `deadline_s` is
    the end of the time budget (`time.monotonic`).
    """
    from torchyard.sweep.executors.interface import open_executor
    from torchyard.sweep.launch_order import LaunchOrder

    return open_executor(
        folder.plan.executor,
        folder.folder,
        lambda cell: command_of_cell(folder, cell),
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
        order=LaunchOrder.of_cells(folder.plan.cells, first_launch_s=first_launch_s),
        deadline_s=deadline_s,
    )


def check_executor_available(plan: SweepPlan) -> None:
    """Raise MissingTool, before anything is written, if the cluster's tools are not installed."""
    if plan.executor.name == "slurm":
        from torchyard.sweep.executors.slurm.job_states import check_tools

        check_tools()


@dataclass(kw_only=True)
class SweepSession:
    """One execution of a sweep and its results."""

    folder: SweepFolder
    quiet: bool = False
    expected_s: Mapping[str, float] = field(default_factory=dict)
    """Expected durations of cells by id, where known."""
    first_launch_s: Mapping[str, float] = field(default_factory=dict)
    """Expected durations of first launches by cell id, where known."""
    deadline_s: float = math.inf
    """End of the time budget (`time.monotonic`)."""
    take_over: bool = False
    """Whether to measure cells here that other processes may still run."""
    home: Path | None = None
    """Parent folder of joined runs; None: the results directory."""
    statuses: Sequence[CellStatus] = ()
    runs: dict[str, Run] = field(default_factory=dict)
    """The joined runs by name."""
    _changed: bool = False
    """Whether cells were still open when this execution began, so that they are joined again."""

    def run(self) -> int:
        """Drive the sweep to its end and return the exit code."""
        from torchyard.sweep.driver import SweepDriver
        from torchyard.sweep.shared_templates import shared_templates

        self._changed = any(status.is_open for status in self.folder.statuses())
        executor = executor_of(
            self.folder, first_launch_s=self.first_launch_s, deadline_s=self.deadline_s
        )
        for note in getattr(executor, "notes", ()):
            print_message(f"note: {note}")
        driver: SweepDriver | None = None
        try:
            with (
                shared_templates(self.folder),
                show_sweep(self.folder.folder, quiet=self.quiet) as listener,
            ):
                driver = SweepDriver(
                    self.folder,
                    executor,
                    listener=listener,
                    expected_s=self.expected_s,
                    take_over=self.take_over,
                    deadline_s=self.deadline_s,
                )
                self.statuses = driver.run()
            if not any(status.is_open for status in self.statuses):
                self._join()
                return self._exit_code()
            if getattr(executor, "out_of_time", False):
                return self._end_without_all_cells()
            # Jobs were cancelled, or other processes run cells: the next driver resumes them.
            print_message(f"stopped: {counts_text(self.statuses)}")
            for line in _running_elsewhere(self.statuses):
                print_message(line)
        except KeyboardInterrupt:
            self.statuses = self.folder.statuses()
            message = f"; {driver.detach_message}" if driver and driver.detach_message else ""
            print_message(f"interrupted: {counts_text(self.statuses)}{message}")
        print_message(f"resume with: {self.resume_command}")
        return INTERRUPTED

    def _end_without_all_cells(self) -> int:
        """Join the cells that have a launch after the time budget, and return the exit code."""
        without = sum(status.is_open for status in self.statuses)
        print_message(
            f"the time budget was used up: {without} of {format_count(len(self.statuses), 'cell')} "
            "without a finished launch"
        )
        print_message(f"resume with: {self.resume_command}")
        if all(status.is_open for status in self.statuses):
            return TimeLimit.exit_code
        self._join()
        return self._exit_code()

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
        from torchyard.sweep.summary import sweep_summary

        console = data_console()
        for name, run in self.runs.items():
            goal = run.study.budget.precision_goal
            console.print(f"{name}: run {run.id}", markup=False, style="bold", soft_wrap=True)
            console.print(comparison_table(run.comparisons, precision_goal=goal))
            console.print()
        summary = sweep_summary(
            self.folder.plan,
            self.statuses,
            list(self.runs.values()),
            folders=[self.folder.folder] * len(self.statuses),
        )
        print_data(printable(sweep_text(summary)))

    def _join(self) -> None:
        """Join the cells into runs, or use the runs that an earlier driver joined."""
        from torchyard.results.directory import runs_home
        from torchyard.results.run_reader import read_run
        from torchyard.sweep.join import join_sweep

        joined = {name: Path(path) for name, path in self.folder.runs().items()}
        if not joined or self._changed or not all(path.is_dir() for path in joined.values()):
            joined = join_sweep(self.folder, self.home or runs_home())
            self.folder.save_runs({name: str(path) for name, path in joined.items()})
        self.runs = {name: read_run(path) for name, path in joined.items()}

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

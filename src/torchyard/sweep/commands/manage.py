"""Commands about existing sweeps: `sweep list`, `show`, `report` and `cancel`.

A sweep is given as `latest`, a folder, or a name in the sweeps directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.options import chosen_format, deliver, report_options
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable
from torchyard.errors import NotAllowed, NothingToDo, TorchyardError, UsageError
from torchyard.process.owner import is_gone

if TYPE_CHECKING:
    from torchyard.sweep.folder import SweepFolder


def sweep_folders() -> list[Path]:
    """Return the sweep folders in the sweeps directory, newest first."""
    from torchyard.sweep.folder import PLAN_FILE, sweeps_home

    home = sweeps_home()
    try:
        folders = [path for path in home.iterdir() if (path / PLAN_FILE).is_file()]
    except OSError:
        return []
    return sorted(folders, key=lambda path: path.name, reverse=True)


def find_sweep(text: str) -> Path:
    """Return the folder of the sweep; a UsageError suggests the nearest name."""
    from torchyard.core.records import nearest_hint
    from torchyard.sweep.folder import sweeps_home

    folders = sweep_folders()
    if text == "latest":
        if folders:
            return folders[0]
        raise NothingToDo(
            "there is no sweep yet",
            why=f"{sweeps_home()} contains no sweep",
            hint="start one with `torchyard sweep`, or name the folder of a sweep",
        )
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder
    exact = [path for path in folders if path.name == text]
    matches = exact or [path for path in folders if text and path.name.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"{text!r} is ambiguous: it matches {len(matches)} sweeps",
            hint="use more letters of the name",
        )
    names = ["latest", *(path.name for path in folders[:20])]
    raise UsageError(
        f"there is no sweep {text!r}",
        why=f"it is neither a folder nor the name of a sweep in {sweeps_home()}",
        hint=nearest_hint(text, names, what="sweep")
        if folders
        else "there is no sweep yet: start one with `torchyard sweep`",
    )


_LIST_HELP = """
\b
Examples:
  torchyard sweep list
  torchyard sweep list --json

List sweeps, newest first, with the number of cells by state.
"""


@click.command("list", help=_LIST_HELP)
@common_options
def list_sweeps(as_json: bool) -> None:
    """List sweeps."""
    from torchyard.sweep.commands.cell_progress import sweep_row, sweep_table
    from torchyard.sweep.folder import SweepFolder, sweeps_home

    rows: list[tuple[str, ...]] = []
    records: list[dict[str, Any]] = []
    for path in sweep_folders():
        try:
            folder = SweepFolder.open(path)
            statuses = folder.statuses()
        except TorchyardError as error:
            rows.append((path.name, "", "", "", f"unreadable: {error.what}"))
            records.append({"folder": str(path), "unreadable": error.what})
            continue
        plan = folder.plan
        rows.append(sweep_row(path, plan, statuses))
        states = [status.state for status in statuses]
        records.append(
            {
                "folder": str(path),
                "name": plan.name,
                "created": plan.created,
                "executor": plan.executor.name,
                "shard": list(plan.shard),
                "null": plan.null,
                "states": {state: states.count(state) for state in dict.fromkeys(states)},
                "runs": folder.runs(),
            }
        )
    if as_json:
        print_json({"sweeps": records})
    elif rows:
        print_data(printable(sweep_table(rows)))
    else:
        print_message(f"there are no sweeps in {sweeps_home()}")


_SHOW_HELP = """
\b
Examples:
  torchyard sweep show
  torchyard sweep show 20250131T12
  torchyard sweep show ./sweep --json

Show the cells of a sweep: verdicts of finished ones, progress of running ones, reason and log of
failed ones. SWEEP is a folder, a name or a unique prefix of it, or `latest`. Works while the sweep
runs, on any machine that can access the folder.
"""


@click.command(help=_SHOW_HELP)
@click.argument("sweep", default="latest", metavar="[SWEEP]")
@common_options
def show(sweep: str, as_json: bool) -> None:
    """Show the cells of a sweep."""
    from torchyard.sweep.commands.cell_progress import cell_table, counts_text, failed_text, rows_of
    from torchyard.sweep.folder import SweepFolder

    folder = SweepFolder.open(find_sweep(sweep))
    statuses = folder.statuses()
    runs = folder.runs()
    if as_json:
        print_json(
            {
                "folder": str(folder.folder),
                "plan": folder.plan,
                "cells": statuses,
                "runs": runs,
            }
        )
        return
    rows = {status.cell.id: rows_of(status, folder.folder) for status in statuses}
    parts = [
        f"{folder.plan.name}: {counts_text(statuses)}",
        cell_table(statuses, rows),
        failed_text(statuses, rows, folder.folder),
        "\n".join(f"run {name}: {path}" for name, path in runs.items()),
    ]
    print_data(printable("\n\n".join(part for part in parts if part)))
    if any(status.is_open for status in statuses):
        print_message(f"resume with: torchyard sweep --resume {folder.folder}")


# Repeated here because `--help` must not load the reports; a test compares the two.
FORMATS: Final = ("text", "markdown", "json", "html")
_ENDINGS: Final = {".json": "json", ".html": "html", ".md": "markdown"}

_REPORT_HELP = """
\b
Examples:
  torchyard sweep report
  torchyard sweep report latest --output sweep.html
  torchyard sweep report ./sweep --format json | jq '.groups[].common'
  torchyard sweep report --share --format markdown
  torchyard sweep report ./part-1 ./part-2 ./part-3

Summarize a sweep: pass rate and geometric mean speedup of each suite, extremes, and failures; for
an A/A sweep, the false alarm rate. SWEEP is a folder, a name or a unique prefix of it, or `latest`.
Several sweeps, such as shards, are read as one; a cell in several is taken from the last one that
finished it.
"""


@click.command(help=_REPORT_HELP)
@click.argument("sweeps", nargs=-1, metavar="[SWEEP]...")
@report_options(FORMATS, usual="text", left_out="host names, users, paths and values of variables")
@common_options
def report(
    sweeps: tuple[str, ...],
    format_name: str | None,
    output: Path | None,
    share: bool,
    as_json: bool,
) -> None:
    """Summarize a sweep."""
    from dataclasses import replace

    from torchyard.sweep.report.formats import render_sweep, reports_beside, shared_summary
    from torchyard.sweep.rows import read_sweeps
    from torchyard.sweep.summary import sweep_summary

    name = chosen_format(format_name, output, _ENDINGS, usual="text", as_json=as_json)
    parts = read_sweeps([find_sweep(one) for one in sweeps or ("latest",)])
    summary = sweep_summary(parts.plan, parts.statuses, parts.runs, folders=parts.folders)
    summary = replace(summary, doubts=(*parts.doubts, *summary.doubts))
    if share:
        summary = shared_summary(summary, parts.runs)
    links = reports_beside(summary, output.absolute().parent) if output is not None else None
    deliver(render_sweep(summary, name, links=links), name, output)


DRIVER_STOP_S: Final = 60.0
"""Time for a driver to stop its cells (`executors.local.STOP_TIMEOUT_S`) and exit."""

_CANCEL_HELP = """
\b
Examples:
  torchyard sweep cancel latest
  torchyard sweep cancel ./sweep

Cancel the jobs of a sweep on a cluster, or interrupt its process on this machine, like Ctrl-C.
Finished cells are kept. Exit code 3 if nothing is running.
"""


@click.command(help=_CANCEL_HELP)
@click.argument("sweep", metavar="SWEEP")
@common_options
def cancel(sweep: str, as_json: bool) -> None:
    """Cancel a sweep."""
    from torchyard.sweep.folder import SweepFolder

    folder = SweepFolder.open(find_sweep(sweep))
    pid = _interrupt_driver(folder)
    stopped = pid is None or _wait_for_driver(folder)
    cancelled = _cancel_jobs(folder) if stopped else 0
    if pid is None and not cancelled:
        raise NothingToDo(
            "the sweep is not running",
            why="no process drives it, and it has no jobs",
            hint=f"resume it with: torchyard sweep --resume {folder.folder}",
        )
    if as_json:
        print_json(
            {"folder": str(folder.folder), "driver": pid, "ended": stopped, "jobs": cancelled}
        )
        return
    if pid is not None:
        print_message(
            f"process {pid} was interrupted" + ("" if stopped else "; it is still running")
        )
    if cancelled:
        print_message(f"jobs cancelled: {cancelled}")
    print_message(f"resume with: torchyard sweep --resume {folder.folder}")


def _interrupt_driver(folder: SweepFolder) -> int | None:
    """Interrupt the process that drives the sweep; return its PID, or None if there is none."""
    from torchyard.sweep.folder import LOCK_FILE

    owner = _driver(folder.folder / LOCK_FILE)
    if owner is None:
        return None
    pid, host = owner.get("pid"), owner.get("host")
    if not isinstance(pid, int) or host != socket.gethostname():
        raise UsageError(
            f"the sweep is driven on another machine: {host}",
            why=f"process {pid} there drives it",
            hint="run the same command there",
        )
    try:
        os.kill(pid, signal.SIGINT)
    except OSError as error:
        raise NotAllowed(
            f"process {pid} cannot be interrupted", why=error.strerror or str(error)
        ) from error
    return pid


def _wait_for_driver(folder: SweepFolder) -> bool:
    """Wait until the driver has exited; return False on timeout."""
    from torchyard.sweep.folder import LOCK_FILE

    deadline_s = time.monotonic() + DRIVER_STOP_S
    while _driver(folder.folder / LOCK_FILE) is not None:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _driver(path: Path) -> dict[str, Any] | None:
    """Return the process that holds the lock; None if it is free or the process has ended."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                record = json.loads(file.read() or b"{}")
                return record if isinstance(record, dict) and not is_gone(record) else None
    except (OSError, ValueError):
        return None
    return None


def _cancel_jobs(folder: SweepFolder) -> int:
    """Cancel the jobs on a cluster; return how many there were."""
    if folder.plan.executor.name == "local":
        return 0
    from torchyard.sweep.execution import executor_of

    with folder.driving():  # only one process may use an executor at a time
        executor = executor_of(folder)
        jobs, _ = executor.poll()
        executor.cancel()
        folder.close_lost()
    return len(jobs)

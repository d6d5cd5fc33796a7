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
from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.errors import NotAllowed, NothingToDo, TorchyardError, UsageError
from torchyard.process.owner import is_gone


def sweep_folders() -> list[Path]:
    """The folders in the sweeps' home that hold a plan, newest first."""
    from torchyard.sweep.folder import PLAN_FILE, sweeps_home

    home = sweeps_home()
    try:
        found = [path for path in home.iterdir() if (path / PLAN_FILE).is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.name, reverse=True)


def find_sweep(text: str) -> Path:
    """The folder of the sweep; raises UsageError with the nearest name when there is none."""
    from torchyard.core.records import nearest_hint
    from torchyard.sweep.folder import sweeps_home

    kept = sweep_folders()
    if text == "latest":
        if kept:
            return kept[0]
        raise NothingToDo(
            "there is no sweep yet",
            why=f"looked in {sweeps_home()}",
            hint="make one with `torchyard sweep`, or name a sweep's folder",
        )
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder
    named = [path for path in kept if path.name == text]
    begun = named or [path for path in kept if text and path.name.startswith(text)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(
            f"{text!r} could be {len(begun)} sweeps", hint="write more letters of the name"
        )
    raise UsageError(
        f"there is no sweep {text!r}",
        why=f"it is neither a folder nor the name of a sweep in {sweeps_home()}",
        hint=nearest_hint(text, ["latest", *(path.name for path in kept[:20])], what="sweep"),
    )


_LIST_HELP = """
\b
Examples:
  torchyard sweep list
  torchyard sweep list --json

List sweeps, newest first: when, what, and how many of its cells are done, running or failed.
"""


@click.command("list", help=_LIST_HELP)
@common_options
def list_sweeps(as_json: bool) -> None:
    """List what is kept."""
    from torchyard.sweep.commands.cell_progress import sweep_row, sweep_table
    from torchyard.sweep.folder import SweepFolder, sweeps_home

    rows: list[tuple[str, ...]] = []
    found: list[dict[str, Any]] = []
    for path in sweep_folders():
        try:
            folder = SweepFolder.open(path)
            statuses = folder.statuses()
        except TorchyardError as error:
            rows.append((path.name, "", "", "", f"unreadable: {error.what}"))
            found.append({"folder": str(path), "unreadable": error.what})
            continue
        plan = folder.plan
        rows.append(sweep_row(path, plan, statuses))
        states = [status.state for status in statuses]
        found.append(
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
        print_json({"sweeps": found})
    elif rows:
        print_data(printable(sweep_table(rows)))
    else:
        talk(f"there is no sweep yet; sweeps are kept in {sweeps_home()}")


_SHOW_HELP = """
\b
Examples:
  torchyard sweep show
  torchyard sweep show 20250131T12
  torchyard sweep show ./sweep --json

Show the cells of a sweep: done with their verdicts, running and with what, waiting, or failed with
the reason and the log. SWEEP is a sweep's folder, its name or the beginning of it, or `latest`. Reads the folder only,
so it works while the sweep runs, on any machine that sees the folder.
"""


@click.command(help=_SHOW_HELP)
@click.argument("sweep", default="latest", metavar="[SWEEP]")
@common_options
def show(sweep: str, as_json: bool) -> None:
    """Show a sweep."""
    from torchyard.core.records import encode
    from torchyard.sweep.commands.cell_progress import cell_table, counts_text, failed_text, rows_of
    from torchyard.sweep.folder import SweepFolder

    folder = SweepFolder.open(find_sweep(sweep))
    statuses = folder.statuses()
    runs = folder.runs()
    if as_json:
        print_json(
            {
                "folder": str(folder.folder),
                "plan": encode(folder.plan),
                "cells": [encode(status) for status in statuses],
                "runs": runs,
            }
        )
        return
    rows = {status.cell.id: rows_of(status, folder.folder) for status in statuses}
    parts = [
        f"{folder.plan.name}: {counts_text(statuses)}",
        cell_table(statuses, rows),
        failed_text(statuses, rows, folder.folder),
        "\n".join(f"run of {name}: {path}" for name, path in runs.items()),
    ]
    print_data(printable("\n\n".join(part for part in parts if part)))
    if any(status.state in ("waiting", "running", "queued") for status in statuses):
        talk(f"go on with it: torchyard sweep --resume {folder.folder}")


# Written out because the reports must not be loaded for `--help`; a test holds the two together.
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

Show every suite with its pass rate and geometric mean, the best and the worst, and what did not pass
and why; for an A/A sweep, how often this machine gave a false alarm. SWEEP is a sweep's folder, its
name or the beginning of it, or `latest`. Several of them, such as shards from other machines, are
read as one: corrected together, and a cell that two of them hold is taken from the last that finished
it. `torchyard report` shows one run in full.
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
    found = read_sweeps([find_sweep(one) for one in sweeps or ("latest",)])
    summary = sweep_summary(found.plan, found.statuses, found.runs, folders=found.folders)
    summary = replace(summary, doubts=(*found.doubts, *summary.doubts))
    if share:
        summary = shared_summary(summary, found.runs)
    links = reports_beside(summary, output.absolute().parent) if output is not None else None
    deliver(render_sweep(summary, name, links=links), name, output)


if TYPE_CHECKING:
    from torchyard.sweep.folder import SweepFolder


END_S: Final = 60.0
"""For a driver to let its cell write what it has (`executors.local`), and to end."""

_CANCEL_HELP = """
\b
Examples:
  torchyard sweep cancel latest
  torchyard sweep cancel ./sweep

End the jobs of a sweep, or on this machine the process that drives it, as Ctrl-C there would. What
has finished stays, and `torchyard sweep --resume` goes on with the rest. Ends with exit code 3 when
nothing runs.
"""


@click.command(help=_CANCEL_HELP)
@click.argument("sweep", metavar="SWEEP")
@common_options
def cancel(sweep: str, as_json: bool) -> None:
    """End what runs."""
    from torchyard.sweep.folder import SweepFolder

    folder = SweepFolder.open(find_sweep(sweep))
    pid = _end_driver(folder)
    gone = pid is None or _wait_for_end(folder)
    ended = _end_jobs(folder) if gone else 0
    if pid is None and not ended:
        raise NothingToDo(
            "nothing of this sweep runs",
            why="no process drives it, and it has no jobs",
            hint=f"go on with it: torchyard sweep --resume {folder.folder}",
        )
    if as_json:
        print_json({"folder": str(folder.folder), "driver": pid, "ended": gone, "jobs": ended})
        return
    if pid is not None:
        talk(f"process {pid} was asked to stop, as by Ctrl-C" + ("" if gone else "; it still runs"))
    if ended:
        talk(f"jobs ended: {ended}")
    talk(f"go on later: torchyard sweep --resume {folder.folder}")


def _end_driver(folder: SweepFolder) -> int | None:
    """Interrupt the process that drives the sweep; its pid, or None when nobody does."""
    from torchyard.sweep.folder import LOCK_FILE

    owner = _driver(folder.folder / LOCK_FILE)
    if owner is None:
        return None
    pid, host = owner.get("pid"), owner.get("host")
    if not isinstance(pid, int) or host != socket.gethostname():
        raise UsageError(
            f"the sweep is driven on another machine: {host}",
            why=f"process {pid} there drives it",
            hint="give the same command there",
        )
    try:
        os.kill(pid, signal.SIGINT)
    except OSError as error:
        raise NotAllowed(
            f"process {pid} cannot be asked to stop", why=error.strerror or str(error)
        ) from error
    return pid


def _wait_for_end(folder: SweepFolder) -> bool:
    """Whether the driver has written down what it has, and is gone."""
    from torchyard.sweep.folder import LOCK_FILE

    deadline_s = time.monotonic() + END_S
    while _driver(folder.folder / LOCK_FILE) is not None:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _driver(path: Path) -> dict[str, Any] | None:
    """What the lock says of its holder; None when it is free or its holder has ended."""
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


def _end_jobs(folder: SweepFolder) -> int:
    """End the jobs of a cluster; how many there were."""
    if folder.plan.executor.name == "local":
        return 0
    from torchyard.sweep.commands.execution import executor_of

    with folder.driving():  # an executor is for one process at a time
        executor = executor_of(folder)
        jobs, _ = executor.poll()
        executor.cancel()
        folder.close_lost()
    return len(jobs)

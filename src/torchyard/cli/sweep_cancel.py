"""`torchyard sweep cancel`: end what a sweep has running or queued; finished cells stay."""

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

from torchyard.cli.output import common_options, print_json, talk
from torchyard.errors import NotAllowed, NothingToDo, UsageError
from torchyard.results.owner import is_gone

if TYPE_CHECKING:
    from torchyard.results.sweep_folder import SweepFolder

__all__ = ["cancel"]

END_S: Final = 60.0
"""For a driver to let its cell write what it has (`executors.local`), and to end."""

_HELP = """
\b
Examples:
  torchyard sweep cancel latest
  torchyard sweep cancel ./sweep

End the jobs of a sweep, or on this machine the process that drives it, as Ctrl-C there would. What
has finished stays, and `torchyard sweep --resume` goes on with the rest. Ends with exit code 3 when
nothing runs.
"""


@click.command(help=_HELP)
@click.argument("sweep", metavar="SWEEP")
@common_options
def cancel(sweep: str, as_json: bool) -> None:
    """End what runs."""
    from torchyard.cli.sweep_choice import find_sweep
    from torchyard.results.sweep_folder import SweepFolder

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
    from torchyard.results.sweep_folder import LOCK_FILE

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
    from torchyard.results.sweep_folder import LOCK_FILE

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
    from torchyard.cli.sweep_executor import executor_of

    with folder.driving():  # an executor is for one process at a time
        executor = executor_of(folder)
        jobs, _ = executor.poll()
        executor.cancel()
        folder.close_lost()
    return len(jobs)

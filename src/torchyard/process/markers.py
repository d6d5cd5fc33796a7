"""Marks in the environment by which processes of a launch are found again, wherever they went.

A process may leave its parent, its process group and its session, but it keeps the environment it
was started with, and so do the processes it forks or starts in the usual way; Linux shows it in
/proc/PID/environ. A program that is started with an emptied environment (`env -i`) loses the marks.

TORCHYARD_LAUNCH   unique for each worker
TORCHYARD_YARD     pid:start time:pid namespace of the yard that started it. The namespace keeps a
                   sweep on a host from taking the workers of a living yard in a container, whose
                   process numbers mean something else outside, for orphans.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = [
    "LAUNCH_VARIABLE",
    "YARD_VARIABLE",
    "kill_launch",
    "new_launch_mark",
    "processes_of_launch",
    "start_ticks",
    "sweep_orphans",
    "yard_mark",
]

LAUNCH_VARIABLE: Final = "TORCHYARD_LAUNCH"
YARD_VARIABLE: Final = "TORCHYARD_YARD"

_PROC: Final = Path("/proc")
_SWEEP_PAUSE_S: Final = 0.01


def new_launch_mark() -> str:
    """A mark no other worker has, on this machine or another."""
    return uuid.uuid4().hex


def yard_mark() -> str:
    """The mark of this process as a yard."""
    return f"{os.getpid()}:{start_ticks(os.getpid())}:{_pid_namespace()}"


def processes_of_launch(mark: str) -> list[int]:
    """The living processes that carry the mark."""
    return [pid for pid in _all_pids() if _is_of_launch(pid, mark)]


def kill_launch(mark: str) -> list[int]:
    """Send SIGKILL to every process that carries the mark; returns those that were found."""
    found = processes_of_launch(mark)
    for pid in found:
        _kill_if(pid, lambda pid: _is_of_launch(pid, mark))
    return found


def sweep_orphans(*, limit_s: float = 2.0) -> tuple[int, ...]:
    """End processes of launches whose yard is gone; returns their pids.

    A yard that is ended with `kill -9` takes its workers along (PR_SET_PDEATHSIG), but not what
    they forked. The program calls this when it starts. Only processes this user may look at are
    seen, and only those of this pid namespace.
    """
    deadline = time.monotonic() + limit_s
    ended: set[int] = set()
    while True:
        orphans = [pid for pid in _all_pids() if _is_orphan(pid)]
        ended.update(pid for pid in orphans if _kill_if(pid, _is_orphan))
        if not orphans or time.monotonic() > deadline:
            return tuple(sorted(ended))
        time.sleep(_SWEEP_PAUSE_S)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208  # names only, many


def _marks(pid: int) -> dict[str, str]:
    """Our variables in a process's environment; empty for kernel threads, zombies and strangers."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    if b"TORCHYARD_" not in environment:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in environment.split(b"\0"))
    return {name: value for name, _, value in pairs if name in (LAUNCH_VARIABLE, YARD_VARIABLE)}


def _is_of_launch(pid: int, mark: str) -> bool:
    return _marks(pid).get(LAUNCH_VARIABLE) == mark


def _is_orphan(pid: int) -> bool:
    marks = _marks(pid)
    parts = marks.get(YARD_VARIABLE, "").split(":")
    if LAUNCH_VARIABLE not in marks or len(parts) != 3 or not parts[0].isdigit():  # noqa: PLR2004
        return False
    yard_pid, started, namespace = parts
    if namespace != _pid_namespace() or pid == os.getpid():
        return False
    return str(start_ticks(int(yard_pid))) != started


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in brackets and may itself hold blanks and brackets; the state follows it.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _pid_namespace() -> str:
    try:
        link = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # "pid:[4026531836]" is no path
    except OSError:
        return "unknown"
    return link.partition("[")[2].rstrip("]")


def _kill_if(pid: int, is_the_one: Callable[[int], bool]) -> bool:
    """SIGKILL, unless the pid has passed to another process since it was found."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # no such call here (gVisor, Linux before 5.3): a tiny window remains
        with suppress(OSError):
            if is_the_one(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        return False
    try:
        if is_the_one(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        return False
    except OSError:
        return False
    finally:
        os.close(pidfd)

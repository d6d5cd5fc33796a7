"""Find and end all processes of a launch, and measure the memory of a process tree.

Children are found through their parents, through the process group, and, if they left both, through
markers in their environment: a process may leave its parent, group and session but keeps the
environment it was started with, and passes it on; Linux shows it in /proc/PID/environ. A program
started with an empty environment (`env -i`) loses the markers.

TORCHYARD_LAUNCH   unique for each worker
TORCHYARD_YARD     pid:start time:pid namespace of the controller. The namespace prevents a search
                   for orphans on a host from matching workers of a live controller in a
                   container, where process ids differ.
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

import psutil

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


_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1
_FAMILY_REFRESH_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def kill_tree(pid: int, launch_mark: str, *, limit_s: float = 10.0) -> tuple[int, ...]:
    """SIGKILL to the process, its group, its descendants and whatever carries the launch's mark.

    Returns once they are gone (zombies count as gone), or after the limit with the pids that would
    not die, such as processes stuck in the kernel. The process itself must not have been reaped yet:
    until then its number, and so its group's, cannot belong to anybody else.
    """
    deadline = time.monotonic() + limit_s
    pause_s = _FIRST_PAUSE_S
    family = _descendants(pid)
    started = {member: start_ticks(member) for member in (pid, *(child.pid for child in family))}
    while True:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        marked = kill_launch(launch_mark)
        for member_pid in marked:
            started.setdefault(member_pid, start_ticks(member_pid))
        # A process that is ending loses its environment before its other possessions, so that
        # the mark alone would call it gone too early.
        left = [
            member
            for member, ticks in started.items()
            if ticks is not None and start_ticks(member) == ticks
        ]
        if not left and not marked:  # what was found may have forked before it was killed
            return ()
        if time.monotonic() > deadline:
            return tuple(sorted(left))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


class TreeMemory:
    """Resident memory of a process and its descendants.

    A page that forked children share with their parent is counted once for each. Shared counts
    (PSS) would be exact, but reading them walks the page tables under the lock that the measured
    process needs. The family is looked up once a second, since that reads all of /proc.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._children: list[int] = []
        self._refresh_at = 0.0

    def resident_bytes(self) -> int:
        """The sum at this moment; a process that is gone counts nothing."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._children = [child.pid for child in _descendants(self._pid)]
            self._refresh_at = now + _FAMILY_REFRESH_S
        return sum(_resident_bytes(pid) for pid in (self._pid, *self._children))


def peak_resident_bytes(pid: int) -> int | None:
    """The most that the process alone ever held, by the kernel's count; None when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123  # as below
            lines = file.read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123  # four times a second
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0

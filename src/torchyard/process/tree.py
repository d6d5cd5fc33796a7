"""A worker with everything it started: ends all of it, and says how much memory it holds.

Children that stay in the family are found through their parents, those in the process group with
the group, and those that left both by the mark in their environment. Knows nothing of pipes or
questions.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

import psutil

from torchyard.process.markers import kill_launch, start_ticks

__all__ = ["TreeMemory", "kill_tree", "peak_resident_bytes"]

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

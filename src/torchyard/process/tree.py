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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from torchyard.process.owner import pid_namespace, start_ticks

LAUNCH_VARIABLE: Final = "TORCHYARD_LAUNCH"
CONTROLLER_VARIABLE: Final = "TORCHYARD_YARD"

_PROC: Final = Path("/proc")
_SWEEP_PAUSE_S: Final = 0.01
_STOP_PAUSE_S: Final = 0.002
_MARK_LENGTH: Final = 64


def new_launch_mark() -> str:
    """Return a globally unique launch mark."""
    return uuid.uuid4().hex


def controller_mark() -> str:
    """Return the mark of this process as a controller.

    Padded to one length, because a forked worker overwrites the mark of its template in place.
    """
    mark = f"{os.getpid()}:{start_ticks(os.getpid())}:{_namespace_number()}"
    return mark.ljust(_MARK_LENGTH)


def processes_of_launch(mark: str) -> list[int]:
    """Return the running processes that carry the mark."""
    return [pid for pid in _all_pids() if _is_of_launch(pid, mark)]


def wait_until_stopped(pids: Collection[int], *, limit_s: float) -> None:
    """Wait until these processes no longer run: a signal takes effect only when they are scheduled."""
    deadline = time.monotonic() + limit_s
    while any(map(process_runs, pids)) and time.monotonic() < deadline:
        time.sleep(_STOP_PAUSE_S)


def process_runs(pid: int) -> bool:
    """Whether the process exists and is not stopped."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill_launch(mark: str) -> list[int]:
    """Send SIGKILL to every process that carries the mark; return their PIDs."""
    pids = processes_of_launch(mark)
    for pid in pids:
        _kill_if(pid, lambda pid: _is_of_launch(pid, mark))
    return pids


def sweep_orphans(*, limit_s: float = 2.0) -> tuple[int, ...]:
    """Kill processes of launches whose controller is gone; return their PIDs.

    When a controller is killed by `kill -9`, its workers die too (PR_SET_PDEATHSIG), but not the
    processes that they forked. Called when the program starts. Covers only processes whose
    environment this user may read, in this PID namespace.
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
    """Return Torchyard's variables in a process's environment; empty when it cannot be read."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    if b"TORCHYARD_" not in environment:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in environment.split(b"\0"))
    return {
        name: value.rstrip()
        for name, _, value in pairs
        if name in (LAUNCH_VARIABLE, CONTROLLER_VARIABLE)
    }


def is_own_worker(pid: int) -> bool:
    """Whether this process started the worker, or a worker that started the process."""
    return _marks(pid).get(CONTROLLER_VARIABLE) == controller_mark().strip()


def _is_of_launch(pid: int, mark: str) -> bool:
    return _marks(pid).get(LAUNCH_VARIABLE) == mark


def _is_orphan(pid: int) -> bool:
    marks = _marks(pid)
    parts = marks.get(CONTROLLER_VARIABLE, "").split(":")
    if LAUNCH_VARIABLE not in marks or len(parts) != 3 or not parts[0].isdigit():  # noqa: PLR2004
        return False
    controller_pid, started, namespace = parts
    if namespace != _namespace_number() or pid == os.getpid():
        return False
    return str(start_ticks(int(controller_pid))) != started


def _namespace_number() -> str:
    return pid_namespace().partition("[")[2].rstrip("]") or "unknown"


def _kill_if(pid: int, matches: Callable[[int], bool]) -> bool:
    """Send SIGKILL, unless the PID has been reused by a process that does not match."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfd (gVisor, Linux before 5.3): a short race window remains
        with suppress(OSError):
            if matches(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        return False
    try:
        if matches(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        return False
    except OSError:
        return False
    finally:
        os.close(pidfd)


_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1
_DESCENDANTS_REFRESH_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def kill_tree(pid: int, launch_mark: str, *, limit_s: float = 10.0) -> tuple[int, ...]:
    """Send SIGKILL to the process, its group, its descendants and all processes with the mark.

    Returns once they are gone (zombies count as gone), or after the limit with the PIDs of survivors,
    such as processes stuck in the kernel. The process itself must not have been reaped yet: until
    then its PID, and the number of its group, cannot be reused.
    """
    deadline = time.monotonic() + limit_s
    pause_s = _FIRST_PAUSE_S
    descendants = _descendants(pid)
    started = {
        member: start_ticks(member) for member in (pid, *(child.pid for child in descendants))
    }
    while True:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        for descendant in descendants:
            with suppress(psutil.Error):
                descendant.kill()
        marked = kill_launch(launch_mark)
        for member_pid in marked:
            started.setdefault(member_pid, start_ticks(member_pid))
        # An exiting process loses its environment before its other resources: by the mark alone it
        # would count as gone too early.
        survivors = [
            member
            for member, ticks in started.items()
            if ticks is not None and start_ticks(member) == ticks
        ]
        if not survivors and not marked:  # a marked process may have forked before it was killed
            return ()
        if time.monotonic() > deadline:
            return tuple(sorted(survivors))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


class TreeMemory:
    """Resident memory of a process and its descendants.

    A page that forked children share with their parent is counted once for each process. The
    proportional set size (PSS) would be exact, but reading it walks the page tables under a lock that
    the measured process needs. Descendants are listed once a second, since that reads all of /proc.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._children: list[int] = []
        self._refresh_at = 0.0

    def resident_bytes(self) -> int:
        """Return the current sum; a process that has ended counts as 0."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._children = [child.pid for child in _descendants(self._pid)]
            self._refresh_at = now + _DESCENDANTS_REFRESH_S
        return sum(_resident_bytes(pid) for pid in (self._pid, *self._children))


def peak_resident_bytes(pid: int) -> int | None:
    """Return the peak resident set size (VmHWM) of one process; None when it has ended."""
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


@contextmanager
def confined(cores: Collection[int]) -> Iterator[None]:
    """Confine this thread, and everything that it starts in the block, to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move_processes(processes: Callable[[], Collection[int]], cores: Collection[int]) -> None:
    """Move all threads of the processes to these CPUs.

    `processes` is called again until there are no new threads: one that was not moved yet may start others.
    """
    moved: set[int] = set()
    while new := {thread for pid in processes() for thread in _threads(pid)} - moved:
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        moved |= new


def _threads(pid: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # it has ended
        return []

"""How a worker ended: exit notification, out-of-memory kills, and the failure kind with a hint.

The end of a worker's pipe does not show that the worker is gone: forked children hold the pipe
open. A pidfd does. Where the system has none (gVisor, Linux before 5.3), a thread blocked in waitid
closes a pipe instead. The process is never reaped here: the pid must stay valid until the whole
tree has ended.

The kernel's out-of-memory killer sends a plain SIGKILL; only the counters of the machine and the
control group show it. They count other processes too, so a worker killed by `kill -9` while another
one ran out of memory is also classified as out of memory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from torchyard.errors import MissingTool, WorkerFailed

FailureKind = Literal[
    "raised",  # the worker reported an exception and still runs
    "cannot-build",  # the workload or backend cannot be built in this target
    "crashed",  # it ended by itself: a fatal signal, or an exit during a request
    "killed",  # a signal from outside ended it
    "out-of-memory",
    "timeout",
    "protocol",  # it wrote something that is not an answer, or closed its pipe
    "no-python",  # the interpreter cannot be started, is too old, or is no Python
    "no-torch",
    "interrupted",  # the controller ended it, or abandoned a request
]
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)
MISSING_TARGET: Final[frozenset[str]] = frozenset({"no-python", "no-torch"})
"""Failures because the target has no Python interpreter or no torch."""

_SENT_BY_OTHERS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


class WorkerFailure(WorkerFailed):
    """A request to a worker failed: the kind of failure, the message, and the last lines of the log."""

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind,
        traceback: str = "",
        log_tail: str = "",
        why: str = "",
        hint: str = "",
        log: str = "",
    ) -> None:
        super().__init__(message, why=why, hint=hint, log=log)
        self.kind: FailureKind = kind
        if kind in MISSING_TARGET:
            self.exit_code = MissingTool.exit_code
        self.message = message
        self.traceback = traceback
        self.log_tail = log_tail

    def copy(self) -> WorkerFailure:
        """Return a copy, to be raised for a further request to the same dead worker."""
        names = ("kind", "traceback", "log_tail", "why", "hint", "log")
        return WorkerFailure(self.message, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Exit status of a process: an exit code or a signal."""

    exit_code: int | None = None
    signal_number: int | None = None

    @property
    def description(self) -> str:
        """`exited with code 3`, `was killed by SIGSEGV`."""
        if self.signal_number is not None:
            return f"was killed by {self._signal_name}"
        return f"exited with code {self.exit_code}"

    @property
    def hint(self) -> str:
        """The usual cause of this exit status."""
        by_name = {
            "SIGILL": "this build of torch may use instructions that this CPU does not support",
            "SIGSEGV": "the last lines of the log show where; a crash in native code is a bug in "
            "the target or in a preloaded library",
            "SIGABRT": "the last lines of the log show the failed assertion",
            "SIGBUS": "shared memory may be full: check the size of /dev/shm",
            "SIGKILL": "another process killed it: a scheduler limit, an administrator, kill -9",
        }
        return by_name.get(self._signal_name, "check the last lines of the log")

    @property
    def _signal_name(self) -> str:
        if self.signal_number is None:
            return ""
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:  # real-time signals have no name of their own
            return f"signal {self.signal_number}"


def kind_of_ending(ending: Ending, *, kernel_killed_for_memory: bool) -> FailureKind:
    """Return the failure kind of a worker that the controller did not end."""
    if ending.signal_number == signal.SIGKILL and kernel_killed_for_memory:
        return "out-of-memory"
    if ending.signal_number in _SENT_BY_OTHERS:
        return "killed"
    return "crashed"


_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def oom_kill_counts() -> tuple[int, ...]:
    """Return the readable OOM-kill counters; a change means that the OOM killer ran."""
    files = (Path("/proc/vmstat"), *_own_group_files())
    counts = (_oom_kills(file) for file in files)
    return tuple(count for count in counts if count is not None)


def _own_group_files() -> list[Path]:
    """Counter files of this process's cgroup: `memory.events` (v2), `memory.oom_control` (v1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        relative = group.lstrip("/")
        if hierarchy == "0":
            files.append(_CONTROL_GROUPS / relative / "memory.events")
            files.append(_CONTROL_GROUPS / "memory.events")  # seen from inside a container
        elif "memory" in controllers.split(","):
            files.append(_CONTROL_GROUPS / "memory" / relative / "memory.oom_control")
            files.append(_CONTROL_GROUPS / "memory" / "memory.oom_control")
    return files


def _oom_kills(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdigit():
            return int(count)
    return None


class ExitWatch:
    """A pollable object that becomes readable when the process ends."""

    def __init__(self, pid: int, *, by_thread: bool = False) -> None:
        self._pid = pid
        self._ending: Ending | None = None
        try:
            self._fd = _fd_of_thread(pid) if by_thread else os.pidfd_open(pid)
        except OSError:
            self._fd = _fd_of_thread(pid)

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._fd

    def ending(self) -> Ending | None:
        """Return the exit status, None while the process runs. Does not wait; caches the status."""
        if self._ending is None:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                result = os.waitid(os.P_PID, self._pid, flags)
            except ChildProcessError:  # reaped by another thread, which called this before
                return self._ending
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                name = "exit_code" if exited else "signal_number"
                self._ending = Ending(**{name: result.si_status})
        return self._ending

    def wait(self, limit_s: float) -> Ending | None:
        """Wait for the exit for at most `limit_s` seconds."""
        if self.ending() is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(max(limit_s, 0.0) * 1000.0)
        return self.ending()

    def close(self) -> None:
        """Close the descriptor; the exit status stays available."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RelayedExit(ExitWatch):
    """The exit of a forked worker, which its template reports over their connection.

    If the connection ends without a report, the template is dead, and the worker died with it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._fd = connection.fileno()
        self._ending: Ending | None = None
        self._received = b""

    def ending(self) -> Ending | None:
        """Return the exit status, None while the process runs. Does not wait; caches the status."""
        while self._ending is None:
            try:
                chunk = self._connection.recv(4096)
            except BlockingIOError:
                return None
            except OSError:
                chunk = b""
            self._received += chunk
            if not chunk:
                self._ending = Ending(signal_number=signal.SIGKILL)
            elif self._received.endswith(b"\n"):
                report = json.loads(self._received)
                self._ending = Ending(
                    exit_code=report.get("exit"), signal_number=report.get("signal")
                )
        return self._ending

    def close(self) -> None:
        """Close the connection; the exit status stays available."""
        self._connection.close()


def _fd_of_thread(pid: int) -> int:
    read_fd, write_fd = os.pipe()

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(write_fd)

    threading.Thread(target=wait, name=f"torchyard-exit-{pid}", daemon=True).start()
    return read_fd

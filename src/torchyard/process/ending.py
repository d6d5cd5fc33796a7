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

import os
import select
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from torchyard.errors import WorkerFailed

TroubleKind = Literal[
    "raised",  # the worker answered with an exception and lives on
    "cannot-build",  # the workload or backend cannot be made in this target, and why
    "crashed",  # it ended by itself: a signal of its own making, or an exit in the middle of work
    "killed",  # somebody else ended it
    "out-of-memory",
    "timeout",
    "protocol",  # it wrote something that is not an answer, or closed its pipe
    "no-python",  # the interpreter cannot be started, is too old, or is no Python
    "no-torch",
    "interrupted",  # we ended it, or left a question unanswered
]
TROUBLE_KINDS: Final[tuple[TroubleKind, ...]] = get_args(TroubleKind)

_SENT_BY_OTHERS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


class WorkerTrouble(WorkerFailed):
    """A worker did not answer as it should; says what happened and shows the log's last lines."""

    def __init__(
        self,
        message: str,
        *,
        kind: TroubleKind,
        traceback: str = "",
        log_tail: str = "",
        why: str = "",
        hint: str = "",
        log: str = "",
    ) -> None:
        super().__init__(message, why=why, hint=hint, log=log)
        self.kind: TroubleKind = kind
        self.message = message
        self.traceback = traceback
        self.log_tail = log_tail

    def again(self) -> WorkerTrouble:
        """A fresh copy, to be raised when somebody asks the same dead worker once more."""
        return WorkerTrouble(
            self.message,
            kind=self.kind,
            traceback=self.traceback,
            log_tail=self.log_tail,
            why=self.why,
            hint=self.hint,
            log=self.log,
        )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a process ended: by an exit code or by a signal."""

    exit_code: int | None = None
    signal_number: int | None = None

    @property
    def said(self) -> str:
        """`ended with exit code 3`, `was ended by SIGSEGV`."""
        if self.signal_number is not None:
            return f"was ended by {self._signal_name}"
        return f"ended with exit code {self.exit_code}"

    @property
    def hint(self) -> str:
        """What this ending usually means."""
        by_name = {
            "SIGILL": "this build of torch may use instructions that this processor lacks",
            "SIGSEGV": "the last lines of the log show where; a crash in native code is a bug of "
            "the target, or of a library that is preloaded",
            "SIGABRT": "the last lines of the log show the assertion that failed",
            "SIGBUS": "shared memory may be full: see the size of /dev/shm",
            "SIGKILL": "something outside ended it: a scheduler's limit, an administrator, kill -9",
        }
        return by_name.get(self._signal_name, "the last lines of the log may say why")

    @property
    def _signal_name(self) -> str:
        if self.signal_number is None:
            return ""
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:  # real-time signals have no name of their own
            return f"signal {self.signal_number}"


def kind_of_ending(ending: Ending, *, kernel_killed_for_memory: bool) -> TroubleKind:
    """The word for a worker that ended though nobody here asked it to."""
    if ending.signal_number == signal.SIGKILL and kernel_killed_for_memory:
        return "out-of-memory"
    if ending.signal_number in _SENT_BY_OTHERS:
        return "killed"
    return "crashed"


_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def oom_kill_counts() -> tuple[int, ...]:
    """The counters that can be read here; one that moved means the killer was at work."""
    files = (Path("/proc/vmstat"), *_own_group_files())
    counts = (_oom_kills(file) for file in files)
    return tuple(count for count in counts if count is not None)


def _own_group_files() -> list[Path]:
    """`memory.events` of version 2 and `memory.oom_control` of version 1 of control groups."""
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
    """Becomes readable when the process ends."""

    def __init__(self, pid: int, *, by_thread: bool = False) -> None:
        self._pid = pid
        self._ending: Ending | None = None
        try:
            self._fd = _fd_of_thread(pid) if by_thread else os.pidfd_open(pid)
        except OSError:
            self._fd = _fd_of_thread(pid)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._fd

    def ending(self) -> Ending | None:
        """How the process ended; None while it lives. Does not wait, and remembers."""
        if self._ending is None:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                result = os.waitid(os.P_PID, self._pid, flags)
            except ChildProcessError:  # reaped by another thread, which looked here before
                return self._ending
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                self._ending = (
                    Ending(exit_code=result.si_status)
                    if exited
                    else Ending(signal_number=result.si_status)
                )
        return self._ending

    def wait(self, limit_s: float) -> Ending | None:
        """Wait for the end up to the limit."""
        if self.ending() is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(max(limit_s, 0.0) * 1000.0)
        return self.ending()

    def close(self) -> None:
        """Give the descriptor back; the ending stays known."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _fd_of_thread(pid: int) -> int:
    read_fd, write_fd = os.pipe()

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(write_fd)

    threading.Thread(target=wait, name=f"torchyard-exit-{pid}", daemon=True).start()
    return read_fd

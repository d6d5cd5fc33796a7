"""Notice the end of one child process, with a descriptor to poll and without using CPU.

The end of a worker's pipe does not show that the worker is gone: children it forked hold the pipe
open. A pidfd does. Where the system has none (gVisor, Linux before 5.3), a thread that blocks in
waitid closes a pipe instead. Never reaps: the pid must stay ours until the whole tree is ended.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress

from torchyard.process.trouble import Ending

__all__ = ["ExitWatch"]


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

"""Start processes from one thread that lives as long as the yard.

PR_SET_PDEATHSIG is bound to the thread that forked, not to its process: a worker that a short-lived
thread started would be ended together with that thread. So every start is made by one thread that
never ends before the yard does. It also makes a start indivisible, since Ctrl-C reaches only the
main thread. Knows nothing of what is started.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["start_in_lasting_thread"]

Start = Callable[[], "subprocess.Popen[bytes]"]
Job = tuple[Start, "Future[subprocess.Popen[bytes]]"]


class _StartingThread:
    """The thread, made anew in a process that was forked from the yard."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="torchyard-starter", daemon=True).start()

    def run(self, start: Start) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((start, future))
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: nobody will own the process, so it ends when it exists.
            future.add_done_callback(_abandon)
            raise

    def _serve(self) -> None:
        while True:
            start, future = self._jobs.get()
            try:
                future.set_result(start())
            except BaseException as error:  # noqa: BLE001  # belongs to whoever waits
                future.set_exception(error)
            del start, future


def _abandon(future: Future[subprocess.Popen[bytes]]) -> None:
    if future.exception() is None:
        process = future.result()
        process.kill()
        process.wait()


_thread: _StartingThread | None = None
_thread_lock = threading.Lock()


def start_in_lasting_thread(start: Start) -> subprocess.Popen[bytes]:
    """What `start` returns, called in the lasting thread."""
    global _thread  # noqa: PLW0603  # one per process is the point
    with _thread_lock:
        if _thread is None or _thread.owner != os.getpid():
            _thread = _StartingThread()
        thread = _thread
    return thread.run(start)

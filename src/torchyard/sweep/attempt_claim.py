"""Claim an attempt file for the lifetime of a process, and detect claims of processes that died.

A process id means nothing in another PID namespace or on another host, for example in a restarted
container. The process that runs an attempt therefore holds an flock on its file, which the kernel
releases however the process ends, and touches the file every `HEARTBEAT_S`:

- Same host and PID namespace: the process is looked up.
- Anywhere else: the process is alive while the lock is held. When the lock is free, the file must
  also not have been touched for `LOST_S`, because some network file systems keep locks local to a
  host.

The file appears under its name with its complete content.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torchyard.process.owner import is_alive

HEARTBEAT_S: Final = 20.0
LOST_S: Final = 120.0
"""Time without a heartbeat after which an attempt of another host or PID namespace counts as lost."""
UNCLAIMED_S: Final = 3600.0
"""The same limit for attempts of earlier releases, which have no heartbeat."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class AttemptClaim:
    """The lock and heartbeat of a running attempt, held by the process that runs it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `create` instead."""
        self.path = path
        self._descriptor = descriptor
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def create(cls, path: Path, text: str) -> AttemptClaim:
        """Create the complete, locked file; raise FileExistsError if it exists."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = _write_new(temporary, text)
        try:
            try:
                os.link(temporary, path)  # never replaces a file, unlike a rename
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                os.close(descriptor)
                descriptor = -1
                descriptor = _write_new(path, text)
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            raise
        finally:
            with suppress(OSError):
                temporary.unlink()
        return cls(path, descriptor)

    def start_heartbeat(self) -> None:
        """Touch the file every `HEARTBEAT_S` from a background thread until `release`."""
        self._thread = threading.Thread(target=self._beat, name="attempt heartbeat", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop the heartbeat and release the lock; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(OSError):
                os.utime(self._descriptor)


def is_lost(
    path: Path, record: Mapping[str, Any], *, now_s: Callable[[], float] = time.time
) -> bool:
    """Return whether the process of an attempt without an outcome has ended.

    `now_s` returns the time of the file system's clock, which may be that of another host.
    """
    owner = record.get("owner")
    if isinstance(owner, Mapping):
        alive = is_alive(owner)
        if alive is not None:
            return not alive
    if _is_locked(path):
        return False
    limit_s = LOST_S if record.get("heartbeat_s") or not record else UNCLAIMED_S
    try:
        return now_s() - path.stat().st_mtime > limit_s
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; False where the file system has no locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _write_new(path: Path, text: str) -> int:
    """Create a file with that text, locked where supported, and return its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = memoryview(text.encode("ascii"))
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

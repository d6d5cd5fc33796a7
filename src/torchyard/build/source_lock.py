"""One build at a time changes a fetched source, and none while another build copies it.

Sources are shared by all builds of a user, and two builds may well run at once. Knows nothing of how
sources are fetched.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from torchyard.results.durable import write_failed

__all__ = ["source_lock"]

_PAUSE_S: Final = 0.2


@contextmanager
def source_lock(
    source: Path, *, alone: bool, stopped: Callable[[], bool], waiting: Callable[[], None]
) -> Iterator[None]:
    """Hold the source, `alone` to change it; a kill gives it back.

    Waits for as long as others hold it, and calls `waiting` once; gives up when `stopped`.
    """
    path = source.with_name(source.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_failed(path, error, kept="what is there") from error
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        told = False
        while not stopped():
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(_PAUSE_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)

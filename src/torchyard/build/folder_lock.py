"""One run at a time in a build's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchyard.errors import NotAllowed
from torchyard.results.durable import write_failed

__all__ = ["only_run"]


@contextmanager
def only_run(lock_file: Path) -> Iterator[None]:
    """Hold the folder; raises NotAllowed when another process does. A kill gives it back."""
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_failed(lock_file, error, kept="what is there") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 40).decode(errors="replace").strip() or "unknown"
            raise NotAllowed(
                f"another build runs in {lock_file.parent} (process {holder})",
                hint="wait for it, or build under another name with --name",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise write_failed(lock_file, error, kept="what is there") from error
        yield
    finally:
        os.close(descriptor)

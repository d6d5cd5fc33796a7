"""One run at a time in a build's folder, and none while other builds stand on it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from torchyard.errors import NotAllowed
from torchyard.results.durable import write_failed

__all__ = ["only_run", "standing_on"]


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
            raise _taken(lock_file, descriptor) from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise write_failed(lock_file, error, kept="what is there") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def standing_on(lock_files: Iterable[Path]) -> Iterator[None]:
    """Keep these folders as they are; raises NotAllowed while one of them is being built.

    Any number of builds may stand on a folder at a time. A folder that only others may write to is
    not kept: whoever may write there does not ask us either.
    """
    with ExitStack() as held:
        for lock_file in lock_files:
            with suppress(OSError):
                descriptor = os.open(lock_file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                held.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise NotAllowed(
                        f"{lock_file.parent}, which this build stands on, is being built"
                        f" (process {_holder(descriptor)})",
                        hint="wait for it, then say the same again",
                    ) from error
        yield


def _taken(lock_file: Path, descriptor: int) -> NotAllowed:
    """Who keeps a run out: another run, or builds that stand on this one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return NotAllowed(
            f"another build runs in {lock_file.parent} (process {_holder(descriptor)})",
            hint="wait for it, or build under another name with --name",
        )
    return NotAllowed(
        f"a build that stands on {lock_file.parent} is running",
        hint="wait for it, or build under another name with --name",
    )


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 40, 0).decode(errors="replace").strip() or "unknown"

"""One tune at a time on a machine: a lock that the kernel gives back when its holders are gone.

The keeper gets the owner's descriptor. A lock belongs to the open file and not to the process, so
it stays held after the owner's death until the keeper has put everything back. Knows nothing of
what is in the journal.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from torchyard.errors import NotAllowed

__all__ = ["JOURNAL_VARIABLE", "JournalLock", "cannot_keep"]

JOURNAL_VARIABLE: Final = "TORCHYARD_MACHINE_JOURNAL"

_LOCK_FILE: Final = "lock"
_LOOK_AGAIN_S: Final = 0.05


class JournalLock:
    """A lock that is held. Its descriptor may be handed to another process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, *, wait_s: float = 0.0) -> JournalLock | None:
        """The lock of the folder, which is made; None when another process holds it until then."""
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Not for others: whoever may open it could hold it and forbid every tune.
            descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cannot_keep(folder, error) from error
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(_LOOK_AGAIN_S)
            except OSError as error:
                os.close(descriptor)
                raise cannot_keep(folder, error) from error

    def release(self) -> None:
        """Give up this process's hold; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def cannot_keep(folder: Path, error: OSError) -> NotAllowed:
    """The error for a folder in which no journal can be kept."""
    return NotAllowed(
        f"cannot keep a journal in {folder}: {error.strerror or error}",
        why="nothing was changed: what is found must be on disk before the first write",
        hint=f"free some space or run as root, or name another folder with {JOURNAL_VARIABLE}",
    )

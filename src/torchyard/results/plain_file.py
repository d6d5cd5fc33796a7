"""Opening a file that must be a plain one: a FIFO would block, and a device would never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_plain"]


def open_plain(path: Path) -> BinaryIO:
    """Open for reading; OSError for anything but a plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.ENODEV, "it is a device, a socket or a FIFO", str(path))
    return os.fdopen(descriptor, "rb")

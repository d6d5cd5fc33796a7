"""Names of Python functions that a program left for perf in /tmp: taken into the profile's folder.

Python writes /tmp/perf-PID.map and never removes it. Knows nothing else of perf.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["take_maps"]

_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - where Python and perf agree to look


def take_maps(pids: Iterable[int], folder: Path, *, temporary: Path = _TEMPORARY) -> list[str]:
    """Move the maps of these processes; only plain files of this user's own."""
    taken = []
    for pid in sorted(set(pids)):
        path = temporary / f"perf-{pid}.map"
        with suppress(OSError):
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid():
                shutil.move(path, folder / path.name)
                taken.append(path.name)
    return taken

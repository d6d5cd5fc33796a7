"""Pages that went to swap or came back, of all processes: `/proc/vmstat`.

The worker's own pages show as major faults. What others swap takes a core for the kernel, and says
that memory is short.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from torchyard.machine.guards.reader import Reader
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

_NAME: Final = "swap"
_COUNTERS: Final = re.compile(rb"^pswp(?:in|out) (\d+)$", re.MULTILINE)


def open_reader(machine: Machine) -> Reader:
    """Pages in and out since the machine started."""
    file = machine.files.hold("proc/vmstat")
    because = file.because
    if not because and _pages([file.read()]) is None:
        because = "/proc/vmstat has no pswpin and pswpout: the kernel is built without swap"
        file.close()
    return Reader(
        name=_NAME,
        reading="swapped_pages",
        grows=True,
        unavailable=because,
        files=(file,),
        parse=_pages,
    )


def _pages(texts: Sequence[bytes]) -> int | None:
    found = _COUNTERS.findall(texts[0])
    return sum(map(int, found)) if found else None

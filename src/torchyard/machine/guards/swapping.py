"""Pages that went to swap or came back, of all processes: `/proc/vmstat`.

The worker's own pages show as major faults. What others swap takes a core for the kernel, and says
that memory is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchyard.machine.guards.reader import Reader
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

_NAME: Final = "swap"
_COUNTERS: Final = (b"\npswpin ", b"\npswpout ")


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
    """Searches instead of matching patterns: the table is long, and that took four times as long."""
    text, pages = texts[0], 0
    for name in _COUNTERS:
        start = text.find(name)
        number = text[start + len(name) :].split(maxsplit=1)[:1] if start >= 0 else []
        if not number:
            return None
        pages += int(number[0])
    return pages

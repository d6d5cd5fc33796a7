"""Time in which some process waited for memory: `/proc/pressure/memory`.

Pressure on processors and on disks is not read: it tells that somebody waited, and the worker's own
run-queue wait and page faults tell whether it was the worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from torchyard.machine.guards.reader import Reader
from torchyard.machine.knob import Machine

__all__ = ["open_reader"]

_TOTAL_US: Final = re.compile(rb"^some .*\btotal=(\d+)", re.MULTILINE)


def open_reader(machine: Machine) -> Reader:
    """Nanoseconds since the machine started."""
    file = machine.files.hold("proc/pressure/memory")
    because = file.because
    if not because and _stall_ns([file.read()]) is None:
        because = "/proc/pressure/memory has no total"
        file.close()
    return Reader(
        name="memory pressure",
        reading="memory_stall_ns",
        grows=True,
        unavailable=because,
        files=(file,),
        parse=_stall_ns,
    )


def _stall_ns(texts: Sequence[bytes]) -> int | None:
    found = _TOTAL_US.search(texts[0])
    return int(found[1]) * 1000 if found else None

"""Clock files of AMD's driver: states of `pp_dpm_*`, and limits in `pp_od_clk_voltage`.

Formats as in the kernel's `aldebaran_ppt.c` (MI200), `smu_v13_0_6_ppt.c` (MI300) and the drivers
of RDNA chips. Parses and reads; writing is the knob's business.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.machine.file_tree import FileTree
from torchyard.machine.gpu.answer import Answer

__all__ = ["clock_now", "clock_states", "graphics_limits"]

_STATE: Final = re.compile(r"^\s*(?:\d+|S):\s*(\d+)\s*mhz\b.*?(\*?)\s*$", re.IGNORECASE)
"""`1: 1700Mhz *`; S is deep sleep; the star marks the present one."""
_GRAPHICS_HEADINGS: Final = ("GFXCLK:", "OD_SCLK:")
"""MI200 says the first, MI300 and RDNA the second."""


def clock_states(files: FileTree, path: str) -> Answer[tuple[tuple[int, bool], ...]]:
    """(megahertz, whether it is the present one) for every state, as listed."""
    found = files.read(path)
    if found.value is None:
        return Answer(because=found.because)
    states = tuple(
        (int(state[1]), state[2] == "*")
        for state in map(_STATE.match, found.value.splitlines())
        if state
    )
    return Answer(value=states) if states else Answer(because=f"/{path} lists no clocks")


def clock_now(states: Answer[tuple[tuple[int, bool], ...]]) -> Answer[int]:
    """The clock with the star."""
    if states.value is None:
        return Answer(because=states.because)
    present = [mhz for mhz, now in states.value if now]
    return Answer(value=present[0]) if present else Answer(because="no clock is marked as present")


def graphics_limits(files: FileTree, card: str) -> Answer[tuple[int, int]]:
    """Lowest and highest graphics clock allowed now.

    First and last line of the block: MI200 puts the present clock between them while it lies
    between, so the line called 1 is not always the upper limit.
    """
    path = f"{card}/device/pp_od_clk_voltage"
    found = files.read(path)
    if found.value is None:
        return Answer(because=found.because)
    clocks: list[int] = []
    inside = False
    for line in found.value.splitlines():
        state = _STATE.match(line)
        if inside and state:
            clocks.append(int(state[1]))
        else:
            inside = line.strip() in _GRAPHICS_HEADINGS
    if not clocks:
        return Answer(because=f"/{path} has no limits of the graphics clock")
    return Answer(value=(clocks[0], clocks[-1]))

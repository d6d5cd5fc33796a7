"""The cores of a wish as masks and lists of this machine: those for measuring, those of the house.

What `--cores` may be is checked in `core_choice.py`; here the answer is a reason, because a knob
that cannot do its work says so and the tune goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.machine import Wish
from torchyard.core.processor_lists import cpu_list
from torchyard.machine.core_choice import Topology
from torchyard.machine.file_tree import FileTree

__all__ = ["HouseCores", "house_cores"]


@dataclass(frozen=True, kw_only=True)
class HouseCores:
    """Both sets, or why there are none."""

    measuring: tuple[int, ...] = ()
    house: tuple[int, ...] = ()
    because: str = ""
    """Empty exactly when both sets have processors."""


def house_cores(files: FileTree, wish: Wish) -> HouseCores:
    """The cores of the wish, and all other processors that are online."""
    measuring = tuple(sorted(set(wish.cores)))
    if not measuring:
        return HouseCores(because="no cores are set apart (see --cores)")
    online = Topology.read(files).online
    absent = tuple(cpu for cpu in measuring if cpu not in online)
    if absent:
        return HouseCores(
            because=f"processors {cpu_list(absent)} are not online (online: {cpu_list(online)})"
        )
    house = tuple(cpu for cpu in online if cpu not in measuring)
    if not house:
        return HouseCores(because=f"cores {cpu_list(measuring)} leave none to the house")
    return HouseCores(measuring=measuring, house=house)

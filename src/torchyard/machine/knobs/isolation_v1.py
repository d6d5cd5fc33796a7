"""Cores set apart with control groups of version 1: a set that measures and a set for the rest.

Version 1 takes no processor away from anybody. So everybody who may run on the cores is moved into
the set of the house, as far as the kernel moves them.
"""

from __future__ import annotations

import time
from typing import Final

from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.errors import NotAllowed, TorchyardError
from torchyard.machine.cpusets import Cpusets, folders_below
from torchyard.machine.file_tree import FileTree
from torchyard.machine.set_apart import HOUSE, MEASURE, make_mirror, take_down

__all__ = ["crowded_groups", "make_shield", "read_shield"]

_LATE_S: Final = 0.01
"""A task whose parent was moved while it was being started can appear in the old group afterwards."""


def make_shield(files: FileTree, cpusets: Cpusets, ours: str, cores: tuple[int, ...]) -> None:
    """Make both sets and move everybody; takes everything down again when it is refused."""
    base = ours.rpartition("/")[0]
    all_cpus = _list(files, f"{base}/{cpusets.effective}") or _list(files, f"{base}/cpuset.cpus")
    # As it is now: second threads may have gone offline since the survey.
    house = tuple(cpu for cpu in all_cpus if cpu not in cores)
    if not house or set(cores) - set(all_cpus):
        raise NotAllowed(
            f"cores {cpu_list(cores)} cannot be set apart from processors {cpu_list(all_cpus)}, "
            f"which /{base} has"
        )
    mems = files.read(f"{base}/cpuset.mems").value or ""
    crowded = crowded_groups(files, cpusets, base, cores)
    try:
        for group, cpus in (
            (ours, all_cpus),
            (f"{ours}/{MEASURE}", cores),
            (f"{ours}/{HOUSE}", house),
        ):
            files.make_folder(group)
            files.write(f"{group}/cpuset.cpus", cpu_list(cpus))
            files.write(f"{group}/cpuset.mems", mems)
        goals = {
            origin: make_mirror(files, cpusets, ours=ours, part=HOUSE, origin=origin)
            for origin in crowded
        }
        for late in (False, True):
            time.sleep(_LATE_S if late else 0.0)
            for origin, goal in goals.items():
                cpusets.move(files, origin, goal)
    except TorchyardError:
        take_down(files, cpusets, ours)
        raise


def read_shield(files: FileTree, ours: str) -> str:
    """`shield 2-3`."""
    return f"shield {files.read(f'{ours}/{MEASURE}/cpuset.cpus').value or 'without cores'}"


def crowded_groups(
    files: FileTree, cpusets: Cpusets, base: str, cores: tuple[int, ...]
) -> list[str]:
    """Groups with members that may run on the cores."""
    return [
        group
        for group in [base, *folders_below(files, base)]
        if cpusets.numbers(files, group)
        and set(
            _list(files, f"{group}/{cpusets.effective}") or _list(files, f"{group}/cpuset.cpus")
        )
        & set(cores)
    ]


def _list(files: FileTree, path: str) -> tuple[int, ...]:
    try:
        return cpus_of_list(files.read(path).value or "")
    except ValueError:
        return ()

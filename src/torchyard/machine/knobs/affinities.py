"""CPU affinity of all tasks: never changed by this knob, only recorded and restored.

Kernels do not keep it. A task that is pinned to a CPU that goes offline may run anywhere from then
on, and before Linux 6.2 every change of a control group replaces what its tasks had requested
themselves. The affinity is therefore recorded before CPUs and groups change, and set again after.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpus_of_list
from torchyard.errors import MissingTool, NotAllowed, UsageError
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.cpusets import Cpusets, find_cpusets
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import read_allowed, read_task, tasks_of

__all__ = ["KNOB"]

GONE: Final = "gone"
"""The value of a task that ended: nothing is left to put back."""

_TASK: Final = re.compile(r"proc/(\d+) started (\d+)")


@dataclass(frozen=True, kw_only=True)
class _Affinities:
    name: str = "affinities"
    about: str = "processors that other programs are pinned to"
    why: str = (
        "Nothing is changed here. Switching threads of cores off and setting cores apart makes "
        "the kernel forget what other programs are pinned to; this is what brings it back."
    )
    profile: Profile = "cpu"
    effect: Effect = "small"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, request: Wish) -> KnobState:  # noqa: ARG002
        """Tasks that may not run on all processors of their group."""
        files = machine.files
        try:
            cpusets: Cpusets | None = find_cpusets(files)
        except MissingTool:
            cpusets = None
        settings = (
            Setting(knob=self.name, place=place, found=found, wanted=None)
            for place, found in _pinned_tasks(files, cpusets).items()
        )
        return KnobState(knob=self.name, settings=tuple(settings))

    def read(self, machine: Machine, place: str) -> str:
        """The processors, as a list."""
        number, started = _parts(place)
        task = read_task(machine.files, number)
        if task is None or task.start_ticks != started:
            return GONE
        return read_allowed(machine.files, number) or GONE

    def write(self, machine: Machine, setting: Setting) -> None:
        """Nothing is wanted."""

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Pin again what is pinned to something else now."""
        if self.same(setting.place, self.read(machine, setting.place), setting.found):
            return
        if not machine.files.live:
            raise NotAllowed("tasks of a copy of a machine cannot be pinned")
        number, _ = _parts(setting.place)
        try:
            os.sched_setaffinity(number, cpus_of_list(setting.found))
        except ProcessLookupError:
            return
        except OSError as error:
            raise NotAllowed(
                f"cannot pin task {number} to processors {setting.found}: {error.strerror}"
            ) from error

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """The same processors, or nobody there to pin."""
        return GONE in (one, other) or cpus_of_list(one) == cpus_of_list(other)


def _pinned_tasks(files: FileTree, cpusets: Cpusets | None) -> dict[str, str]:
    online = Topology.read(files).online
    found: dict[str, str] = {}
    of_group: dict[str, tuple[int, ...]] = {}
    for number in tasks_of(files, "*"):
        allowed = read_allowed(files, number)
        if allowed is None or cpus_of_list(allowed) == online:
            continue
        group = cpusets.group_of(files, number) if cpusets else None
        if cpusets and group:
            if group not in of_group:
                of_group[group] = _processors(files, cpusets, group) or online
            if cpus_of_list(allowed) == of_group[group]:
                continue
        task = read_task(files, number)
        if task is not None and not task.bound:
            found[f"proc/{number} started {task.start_ticks}"] = allowed
    return found


def _processors(files: FileTree, cpusets: Cpusets, group: str) -> tuple[int, ...]:
    """Of the group, or of the next one above that says."""
    while group.startswith(cpusets.top):
        text = files.read(f"{group}/{cpusets.effective}").value
        if text:
            return cpus_of_list(text)
        group = group.rpartition("/")[0]
    return ()


def _parts(place: str) -> tuple[int, int]:
    match = _TASK.fullmatch(place)
    if match is None:
        raise UsageError(f"{place!r} names no task")
    return int(match[1]), int(match[2])


KNOB: Final[Knob] = _Affinities()

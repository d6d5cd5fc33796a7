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
from torchyard.machine.knob import GONE, Knob, Machine
from torchyard.machine.model import Effect, KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.cpusets import Cpusets, find_cpusets
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import read_allowed, read_task, tasks_of

_TASK: Final = re.compile(r"proc/(\d+) started (\d+)")


@dataclass(frozen=True, kw_only=True)
class _Affinities(Knob):
    name: str = "affinities"
    about: str = "CPU affinity of other programs"
    why: str = (
        "Changes nothing by itself. Disabling SMT and isolating cores make the kernel lose the "
        "affinity of other programs; this knob records and restores it."
    )
    effect: Effect = "small"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:  # noqa: ARG002
        """Record the tasks that may not run on all CPUs of their group."""
        files = machine.files
        try:
            cpusets: Cpusets | None = find_cpusets(files)
        except MissingTool:
            cpusets = None
        pinned = _pinned_tasks(files, cpusets).items()
        return self.state(*(self.setting(place, allowed, None) for place, allowed in pinned))

    def read(self, machine: Machine, place: str) -> str:
        """Return the affinity of a task as a list."""
        number, started = _parts(place)
        task = read_task(machine.files, number)
        if task is None or task.start_ticks != started:
            return GONE
        return read_allowed(machine.files, number) or GONE

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Set the affinity again if it differs."""
        if self.same(setting.place, self.read(machine, setting.place), setting.found):
            return
        if not machine.files.live:
            raise NotAllowed("cannot pin tasks of a copy of a machine")
        number, _ = _parts(setting.place)
        try:
            os.sched_setaffinity(number, cpus_of_list(setting.found))
        except ProcessLookupError:
            return
        except OSError as error:
            raise NotAllowed(
                f"cannot pin task {number} to CPUs {setting.found}: {error.strerror}"
            ) from error

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether the CPUs are equal, or the task is gone."""
        return GONE in (one, other) or cpus_of_list(one) == cpus_of_list(other)


def _pinned_tasks(files: FileTree, cpusets: Cpusets | None) -> dict[str, str]:
    online = Topology.read(files).online
    pinned: dict[str, str] = {}
    group_cpus: dict[str, tuple[int, ...]] = {}
    for number in tasks_of(files, "*"):
        allowed = read_allowed(files, number)
        if allowed is None or cpus_of_list(allowed) == online:
            continue
        group = cpusets.group_of(files, number) if cpusets else None
        if cpusets and group:
            if group not in group_cpus:
                group_cpus[group] = _processors(files, cpusets, group) or online
            if cpus_of_list(allowed) == group_cpus[group]:
                continue
        task = read_task(files, number)
        if task is not None and not task.bound:
            pinned[f"proc/{number} started {task.start_ticks}"] = allowed
    return pinned


def _processors(files: FileTree, cpusets: Cpusets, group: str) -> tuple[int, ...]:
    """Return the CPUs of the group, or of the nearest parent that has any."""
    while group.startswith(cpusets.top):
        text = files.read(f"{group}/{cpusets.effective}").value
        if text:
            return cpus_of_list(text)
        group = group.rpartition("/")[0]
    return ()


def _parts(place: str) -> tuple[int, int]:
    match = _TASK.fullmatch(place)
    if match is None:
        raise UsageError(f"{place!r} is not a task")
    return int(match[1]), int(match[2])


KNOB: Final[Knob] = _Affinities()

"""Cores set apart at run time, without a reboot: nobody but who joins runs on them.

How that is done depends on the version of the control groups, see `isolation_v1.py` and
`isolation_v2.py`. `join` and `joining` are for the process that measures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool, TorchyardError
from torchyard.machine.cpusets import Cpusets, find_cpusets
from torchyard.machine.file_tree import FileTree
from torchyard.machine.house_cores import house_cores
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.knobs.isolation_v1 import crowded_groups, make_shield, read_shield
from torchyard.machine.knobs.isolation_v2 import (
    make_partition,
    read_partition,
    remove_partition,
    why_no_partition,
)
from torchyard.machine.process_knob import ProcessSetting
from torchyard.machine.set_apart import GROUP, measuring_group, take_down
from torchyard.machine.tasks import read_allowed, read_task, tasks_of

__all__ = ["KNOB", "Isolation", "join", "joining"]

ABSENT: Final = "absent"
_SHIELD: Final = "shield"
_CONTROLLERS: Final = "cgroup.subtree_control"


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """Satisfies `Knob`."""

    base: str = ""
    """The group, below the topmost one, whose tasks are looked at; empty: everybody's."""
    name: str = "isolation"
    about: str = "cores that nobody but the measuring process runs on"
    why: str = (
        "Any other program that gets a turn on a core stops what is measured there and leaves "
        "its caches behind. Set apart, cores run nothing but the measurement and what the kernel "
        "binds to them. Everybody else shares the rest, and gets slower."
    )
    profile: Profile = "cpu"
    effect: Effect = "large"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """One group of ours that is not there yet."""
        files = machine.files
        cores = house_cores(files, wish)
        if cores.because:
            return KnobState(knob=self.name, unavailable=cores.because)
        try:
            cpusets = find_cpusets(files)
        except MissingTool as error:
            return KnobState(knob=self.name, unavailable=error.what)
        base = _base(cpusets, self.base)
        ours = f"{base}/{GROUP}"
        version_1 = cpusets.version == 1
        reason = "" if version_1 else why_no_partition(files, base)
        if files.exists(ours):
            reason = f"/{ours} is there already: `torchyard machine restore` takes it down"
        if reason:
            return KnobState(knob=self.name, unavailable=reason)
        wanted = f"{_SHIELD if version_1 else wish.partition} {cpu_list(cores.measuring)}"
        settings = [Setting(knob=self.name, place=ours, found=ABSENT, wanted=wanted)]
        controllers = files.read(f"{base}/{_CONTROLLERS}").value
        if not version_1 and "cpuset" not in (controllers or "").split():
            place, found = f"{base}/{_CONTROLLERS}", controllers or ""
            more = f"{found} cpuset".strip()
            settings.insert(0, Setting(knob=self.name, place=place, found=found, wanted=more))
        notes = _notes(files, cpusets, base, cores.measuring, wish)
        return KnobState(knob=self.name, settings=tuple(settings), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """What our group is at present."""
        files = machine.files
        if place.endswith(_CONTROLLERS):
            found = files.read(place)
            if found.value is None:
                raise MissingTool(f"cannot read {found.because}")
            return _without_others(files, place, found.value)
        if not files.exists(place):
            return ABSENT
        version_1 = _cpusets_at(files, place).version == 1
        return read_shield(files, place) if version_1 else read_partition(files, place)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set the cores apart."""
        files = machine.files
        if setting.wanted is None:
            return
        if setting.place.endswith(_CONTROLLERS):
            files.write(setting.place, "+cpuset")
            return
        kind, _, listed = setting.wanted.partition(" ")
        cores = cpus_of_list(listed)
        cpusets = _cpusets_at(files, setting.place)
        if cpusets.version == 1:
            make_shield(files, cpusets, setting.place, cores)
        else:
            make_partition(files, cpusets, setting.place, kind, cores)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Everybody back to where they were, and no trace of ours."""
        files = machine.files
        if setting.place.endswith(_CONTROLLERS):
            now = self.read(machine, setting.place)
            if not self.same(setting.place, now, setting.found):
                files.write(setting.place, "-cpuset")
            return
        cpusets = _cpusets_at(files, setting.place)
        if cpusets.version == 1:
            take_down(files, cpusets, setting.place)
        else:
            remove_partition(files, cpusets, setting.place)

    def same(self, place: str, one: str, other: str) -> bool:
        """Equal; of controllers only ours counts, others come and go."""
        if place.endswith(_CONTROLLERS):
            return ("cpuset" in one.split()) == ("cpuset" in other.split())
        return one == other


def join(machine: Machine, pid: int, *, base: str = "") -> None:
    """Move a process, with its threads, onto the cores that are set apart.

    Raises MissingTool when none are. Children that it starts from then on are there, too. It goes
    back to its own group when the machine is restored.
    """
    files = machine.files
    cpusets = find_cpusets(files)
    ours = f"{_base(cpusets, base)}/{GROUP}"
    numbers = list(tasks_of(files, str(pid))) if cpusets.version == 1 else [pid]
    for number in numbers:
        cpusets.put(files, measuring_group(files, cpusets, ours, number), number)


def joining(machine: Machine, *, base: str = "") -> ProcessSetting:
    """The same for a command that this process is about to start."""
    files = machine.files
    if not files.live:
        return ProcessSetting(unavailable="a copy of a machine runs nothing")
    try:
        cpusets = find_cpusets(files)
        ours = f"{_base(cpusets, base)}/{GROUP}"
        group = measuring_group(files, cpusets, ours, os.getpid())
    except TorchyardError as error:
        return ProcessSetting(unavailable=error.what)
    members = str(files.path(f"{group}/cgroup.procs"))

    def enter() -> None:
        descriptor = os.open(members, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")  # whoever writes
        finally:
            os.close(descriptor)

    return ProcessSetting(apply=enter)


def _base(cpusets: Cpusets, base: str) -> str:
    return f"{cpusets.top}/{base}".rstrip("/")


def _cpusets_at(files: FileTree, ours: str) -> Cpusets:
    """The tree that a group of ours is in, also while the group is not there."""
    parent = ours.rpartition("/")[0]
    try:
        found = find_cpusets(files)
    except MissingTool:
        found = Cpusets(version=2, top=parent)
    # Found again by its place, as the journal knows nothing else.
    version_1 = files.exists(f"{parent}/cpuset.sched_load_balance")
    return Cpusets(version=1 if version_1 else 2, top=found.top)


def _without_others(files: FileTree, place: str, value: str) -> str:
    """The controllers without `cpuset` when others have come to need it: then it is theirs."""
    theirs = (
        "cpuset" in (files.read(path).value or "").split()
        for path in files.paths(f"{place.rpartition('/')[0]}/*/{_CONTROLLERS}")
        if path.split("/")[-2] != GROUP
    )
    words = value.split()
    return " ".join(word for word in words if word != "cpuset") if any(theirs) else value


def _notes(
    files: FileTree, cpusets: Cpusets, base: str, cores: tuple[int, ...], wish: Wish
) -> tuple[str, ...]:
    notes: list[str] = []
    numbers = set(tasks_of(files, "*"))
    if cpusets.version == 1:
        groups = crowded_groups(files, cpusets, base, cores)
        numbers = {number for group in groups for number in cpusets.numbers(files, group)}
    bound = movable = 0
    for number in numbers:
        task = read_task(files, number)
        allowed = read_allowed(files, number) or ""
        if task is not None and set(cpus_of_list(allowed)) & set(cores):
            bound += task.bound
            movable += not task.bound
    if bound:
        notes.append(f"{bound} threads of the kernel are bound to processors and stay on the cores")
    if cpusets.version == 1:
        notes.append(
            f"{movable} tasks are moved to the house; containers that are started later are not"
        )
        if wish.partition == "isolated":
            notes.append("control groups of version 1 keep load balancing among the cores")
    elif wish.partition == "isolated":
        notes.append("no load balancing among the cores: pin every thread, or all share one")
    return tuple(notes)


KNOB: Final[Knob] = Isolation()

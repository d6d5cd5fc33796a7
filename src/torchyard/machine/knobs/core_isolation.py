"""Isolate cores at run time, without a reboot: only processes that join run on them.

- Control groups version 1: one set for measuring and one for all other tasks. Version 1 takes no
  CPU away from any group, so all tasks that may run on the cores are moved to the housekeeping
  set, as far as the kernel allows it.
- Version 2: a partition, which takes its CPUs away from every other group, so no task has to be
  moved. `root` keeps load balancing among the cores, which OpenMP threads need; `isolated` has
  none: threads stay where they are put, and pile up on one core unless each one is pinned.

`join` and `joining` are for the process that measures.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool, NotAllowed, TorchyardError
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.knobs.process_knobs import ProcessSetting
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.cores import house_cores
from torchyard.machine.system.cpusets import (
    GROUP,
    HOUSE,
    MEASURE,
    Cpusets,
    find_cpusets,
    folders_below,
    make_mirror,
    measuring_group,
    take_down,
)
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import read_allowed, read_task, tasks_of

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


PartitionKind = Literal["root", "isolated"]

_PARTITION: Final = "cpuset.cpus.partition"


def why_no_partition(files: FileTree, base: str) -> str:
    """Why there can be none in a group; empty when nothing is known against it."""
    # The topmost group has no such file, and can always be divided.
    own = files.read(f"{base}/{_PARTITION}").value
    if own is not None and own.split()[:1] not in (["root"], ["isolated"]):
        return (
            f"/{base} is no partition itself ({own}): in a container, only the machine around "
            "it can set cores apart"
        )
    children = files.paths(f"{base}/*/cpuset.cpus")
    if children and not files.paths(f"{base}/*/{_PARTITION}"):
        return "this kernel has no partitions (Linux 5.0 has)"
    return ""


def make_partition(
    files: FileTree, cpusets: Cpusets, ours: str, kind: str, cores: tuple[int, ...]
) -> None:
    """Make the partition; takes it down again when the kernel does not make it a valid one."""
    try:
        files.make_folder(ours)
        files.write(f"{ours}/cpuset.cpus", cpu_list(cores))
        files.write(f"{ours}/{_PARTITION}", kind)
        said = files.read(f"{ours}/{_PARTITION}").value or ""
        if said != kind:
            raise NotAllowed(f"the kernel makes no partition of cores {cpu_list(cores)}: {said}")
        # systemd switches controllers off in the topmost group that none of its units needs. The
        # kernel refuses that while a group below has passed the controller on.
        files.write(f"{ours}/cgroup.subtree_control", "+cpuset")
        files.make_folder(f"{ours}/{MEASURE}")
    except TorchyardError:
        remove_partition(files, cpusets, ours)
        raise


def read_partition(files: FileTree, ours: str) -> str:
    """`root 2-3`."""
    said = files.read(f"{ours}/{_PARTITION}").value or "no partition"
    return f"{said} {files.read(f'{ours}/cpuset.cpus').value or 'without cores'}"


def remove_partition(files: FileTree, cpusets: Cpusets, ours: str) -> None:
    """Give the processors back to everybody and remove our groups."""
    if files.exists(f"{ours}/{_PARTITION}"):
        files.write(f"{ours}/{_PARTITION}", "member")
    take_down(files, cpusets, ours)


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

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """One group of ours that is not there yet."""
        files = machine.files
        cores = house_cores(files, request)
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
        wanted = f"{_SHIELD if version_1 else request.partition} {cpu_list(cores.measuring)}"
        settings = [Setting(knob=self.name, place=ours, found=ABSENT, wanted=wanted)]
        controllers = files.read(f"{base}/{_CONTROLLERS}").value
        if not version_1 and "cpuset" not in (controllers or "").split():
            place, found = f"{base}/{_CONTROLLERS}", controllers or ""
            more = f"{found} cpuset".strip()
            settings.insert(0, Setting(knob=self.name, place=place, found=found, wanted=more))
        notes = _notes(files, cpusets, base, cores.measuring, request)
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
    files: FileTree, cpusets: Cpusets, base: str, cores: tuple[int, ...], request: Wish
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
        if request.partition == "isolated":
            notes.append("control groups of version 1 keep load balancing among the cores")
    elif request.partition == "isolated":
        notes.append("no load balancing among the cores: pin every thread, or all share one")
    return tuple(notes)


KNOB: Final[Knob] = Isolation()

"""Which CPUs run what: affinity of other programs, SMT, cores isolated for the measurement.

- Affinities are never changed here, only recorded and restored. Kernels do not keep them: a task
  that is pinned to a CPU that goes offline may run anywhere from then on, and before Linux 6.2 every
  change of a control group replaces what its tasks had requested themselves.
- SMT: `smt/control` takes all sibling threads offline. On kernels without that file (before 4.19),
  CPUs go offline one by one. State that the kernel loses with a CPU is recorded and restored: CPUs
  that were offline before, cpusets of control groups version 1 that lose the CPU for good, and
  interrupts that had nowhere else to go.
- Isolation at run time, without a reboot: only processes that join run on the cores (`join`,
  `join_setting`). Control groups version 1 take no CPU away from any group, so one set is made for
  measuring and one for all other tasks, which are moved as far as the kernel allows. Version 2: a
  partition takes its CPUs away from every other group. `root` keeps load balancing among the cores,
  which OpenMP threads need; `isolated` has none: threads stay where they are put, and pile up on
  one core unless each one is pinned.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.errors import MissingTool, NotAllowed, TorchyardError, UsageError
from torchyard.machine.knob import GONE, FileKnob, Knob, Machine, RequestedValues, same_text
from torchyard.machine.knobs.process_knobs import ProcessSetting
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import Topology, split_cores
from torchyard.machine.system.file_tree import CPU, FileTree
from torchyard.machine.system.tasks import (
    GROUP,
    HOUSEKEEPING,
    MEASURE,
    Cpusets,
    find_cpusets,
    folders_below,
    make_mirror,
    measuring_group,
    read_allowed,
    read_task,
    remove_groups,
    tasks_of,
)

_TASK: Final = re.compile(r"proc/(\d+) started (\d+)")


@dataclass(frozen=True, kw_only=True)
class _Affinities(Knob):
    name: str = "affinities"

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
        number, started = _task_of(place)
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
        number, _ = _task_of(setting.place)
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
                group_cpus[group] = _group_cpus(files, cpusets, group) or online
            if cpus_of_list(allowed) == group_cpus[group]:
                continue
        task = read_task(files, number)
        if task is not None and not task.bound:
            pinned[f"proc/{number} started {task.start_ticks}"] = allowed
    return pinned


def _group_cpus(files: FileTree, cpusets: Cpusets, group: str) -> tuple[int, ...]:
    """Return the CPUs of the group, or of the nearest parent that has any."""
    while group.startswith(cpusets.top):
        text = files.read(f"{group}/{cpusets.effective}").value
        if text:
            return cpus_of_list(text)
        group = group.rpartition("/")[0]
    return ()


def _task_of(place: str) -> tuple[int, int]:
    match = _TASK.fullmatch(place)
    if match is None:
        raise UsageError(f"{place!r} is not a task")
    return int(match[1]), int(match[2])


AFFINITIES_KNOB: Final[Knob] = _Affinities()


CONTROL: Final = f"{CPU}/smt/control"
_SMT_OFF: Final = ("off", "forceoff")
_UNSUPPORTED: Final = {
    "notsupported": "this CPU has no SMT",
    "notimplemented": "this kernel cannot control SMT on this architecture",
}


class SmtKnob(FileKnob):
    """A file knob whose files may be gone at the restore."""

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value; containers and devices may be gone meanwhile."""
        if _may_be_gone(place) and not machine.files.exists(place):
            return GONE
        return super().read(machine, place)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Restore the files that still exist."""
        if self.read(machine, setting.place) != GONE:
            super().restore(machine, setting)


def _smt_values(machine: Machine, request: QuietRequest) -> RequestedValues:
    files = machine.files
    topology = Topology.read(files)
    # The kernel keeps the first thread of every core online.
    siblings = tuple(cpu for core in topology.physical for cpu in core[1:])
    present = files.read(CONTROL).value
    values: dict[str, str | None]
    if present is None:
        if not siblings:
            return RequestedValues(unavailable="no core has an SMT sibling online")
        values = {f"{CPU}/cpu{cpu}/online": "0" for cpu in siblings}
    elif present in _UNSUPPORTED:
        return RequestedValues(unavailable=_UNSUPPORTED[present])
    elif present in _SMT_OFF:
        return RequestedValues(values={CONTROL: "off"})
    elif not siblings:
        # Also `-1`: the kernel has the switch, but does not know the threads per core.
        return RequestedValues(
            unavailable=f"no core has an SMT sibling online (/{CONTROL}: {present})"
        )
    else:
        values = {CONTROL: "off"}
    stay = tuple(core[0] for core in topology.physical)
    notes = [
        f"{len(stay)} of {len(topology.online)} CPUs stay online: programs start fewer threads",
        "the kernel moves programs that are pinned to SMT siblings only, permanently",
    ]
    lost = tuple(cpu for cpu in siblings if cpu in request.cores)
    if lost:
        notes.append(f"CPUs {cpu_list(lost)} are SMT siblings and go offline")
    # A restore runs in reverse: first the switch, then the state that is lost with it.
    lost_state = dict.fromkeys(_lost_state(files, set(siblings), set(stay)))
    return RequestedValues(values={**lost_state, **values}, notes=tuple(notes))


def _lost_state(files: FileTree, going: set[int], stay: set[int]) -> list[str]:
    """Return the files whose values the kernel loses when CPUs go offline, last first."""
    # A group must fit into its parent, so a restore begins at the top.
    groups = [
        path
        for path in files.paths("sys/fs/cgroup/cpuset/*/**/cpuset.cpus")
        if going & set(_listed_cpus(files, path))
    ]
    groups.sort(key=lambda path: -path.count("/"))
    interrupts = [
        path
        for path in files.paths("proc/irq/[0-9]*/smp_affinity")
        if (cpus := _listed_cpus(files, path)) and not stay & set(cpus)
    ]
    # Enabling SMT brings up every CPU, also one that was offline before.
    offline = [
        path for path in files.paths(f"{CPU}/cpu[0-9]*/online") if files.read(path).value == "0"
    ]
    return [*interrupts, *groups, *offline]


def _listed_cpus(files: FileTree, path: str) -> tuple[int, ...]:
    text = files.read(path).text
    try:
        return cpus_of_mask(text) if path.endswith("smp_affinity") else cpus_of_list(text)
    except ValueError:
        return ()


def _may_be_gone(place: str) -> bool:
    return place.startswith(("proc/irq/", "sys/fs/cgroup/"))


def _same_smt(place: str, one: str, other: str) -> bool:
    if place == CONTROL:
        return one == other or {one, other} == set(_SMT_OFF)
    if _may_be_gone(place) and GONE in (one, other):
        return True
    return same_text(place, one, other)


SMT_KNOB: Final[Knob] = SmtKnob(name="smt", requested=_smt_values, same_value=_same_smt)


_LATE_S: Final = 0.01
"""A task that starts while its parent is moved can appear in the old group afterwards."""


def make_shield(files: FileTree, cpusets: Cpusets, ours: str, cores: tuple[int, ...]) -> None:
    """Create both sets and move all tasks; undone if the kernel refuses."""
    base = ours.rpartition("/")[0]
    all_cpus = _cpus(files, cpusets, base)
    # Read again: SMT siblings may have gone offline since the survey.
    housekeeping = tuple(cpu for cpu in all_cpus if cpu not in cores)
    if not housekeeping or set(cores) - set(all_cpus):
        raise NotAllowed(
            f"cannot isolate cores {cpu_list(cores)}: /{base} has CPUs {cpu_list(all_cpus)}"
        )
    mems = files.read(f"{base}/cpuset.mems").text
    occupied = groups_on_cores(files, cpusets, base, cores)
    try:
        for group, cpus in (
            (ours, all_cpus),
            (f"{ours}/{MEASURE}", cores),
            (f"{ours}/{HOUSEKEEPING}", housekeeping),
        ):
            files.make_folder(group)
            files.write(f"{group}/cpuset.cpus", cpu_list(cpus))
            files.write(f"{group}/cpuset.mems", mems)
        goals = {
            origin: make_mirror(files, cpusets, ours=ours, part=HOUSEKEEPING, origin=origin)
            for origin in occupied
        }
        for second_pass in (False, True):
            time.sleep(_LATE_S if second_pass else 0.0)
            for origin, goal in goals.items():
                cpusets.move(files, origin, goal)
    except TorchyardError:
        remove_groups(files, cpusets, ours)
        raise


def groups_on_cores(
    files: FileTree, cpusets: Cpusets, base: str, cores: tuple[int, ...]
) -> list[str]:
    """Return the groups with members that may run on the cores."""
    return [
        group
        for group in [base, *folders_below(files, base)]
        if cpusets.numbers(files, group) and set(_cpus(files, cpusets, group)) & set(cores)
    ]


def _cpus(files: FileTree, cpusets: Cpusets, group: str) -> tuple[int, ...]:
    """Return the effective CPUs of a group, or the requested ones where those are unknown."""
    return (
        files.read(f"{group}/{cpusets.effective}").cpus or files.read(f"{group}/cpuset.cpus").cpus
    )


_PARTITION: Final = "cpuset.cpus.partition"


def why_no_partition(files: FileTree, base: str) -> str:
    """Return why a group cannot have a partition; empty if no obstacle is known."""
    # The root group has no such file, and can always be partitioned.
    own = files.read(f"{base}/{_PARTITION}").value
    if own is not None and own.split()[:1] not in (["root"], ["isolated"]):
        return (
            f"/{base} is not a partition itself ({own}): in a container, only the host can "
            "isolate cores"
        )
    children = files.paths(f"{base}/*/cpuset.cpus")
    if children and not files.paths(f"{base}/*/{_PARTITION}"):
        return "this kernel has no cpuset partitions (needs Linux 5.0)"
    return ""


def make_partition(
    files: FileTree, cpusets: Cpusets, ours: str, kind: str, cores: tuple[int, ...]
) -> None:
    """Create the partition; removed again if the kernel reports it as invalid."""
    try:
        files.make_folder(ours)
        files.write(f"{ours}/cpuset.cpus", cpu_list(cores))
        files.write(f"{ours}/{_PARTITION}", kind)
        state = files.read(f"{ours}/{_PARTITION}").text
        if state != kind:
            raise NotAllowed(f"invalid cpuset partition of cores {cpu_list(cores)}: {state}")
        # systemd disables controllers in the root group that none of its units needs. The kernel
        # refuses that while a group below has enabled the controller for its children.
        files.write(f"{ours}/cgroup.subtree_control", "+cpuset")
        files.make_folder(f"{ours}/{MEASURE}")
    except TorchyardError:
        remove_partition(files, cpusets, ours)
        raise


def read_partition(files: FileTree, ours: str) -> str:
    """Return the present state, such as `root 2-3`."""
    state = files.read(f"{ours}/{_PARTITION}").value or "no partition"
    return f"{state} {files.read(f'{ours}/cpuset.cpus').value or 'without cores'}"


def remove_partition(files: FileTree, cpusets: Cpusets, ours: str) -> None:
    """Release the CPUs and remove our groups."""
    if files.exists(f"{ours}/{_PARTITION}"):
        files.write(f"{ours}/{_PARTITION}", "member")
    remove_groups(files, cpusets, ours)


ABSENT: Final = "absent"
_SHIELD: Final = "shield"
_CONTROLLERS: Final = "cgroup.subtree_control"


@dataclass(frozen=True, kw_only=True)
class Isolation(Knob):
    """Cores reserved for the measurement; one group of ours is one setting."""

    base: str = ""
    """The group below the root whose tasks are handled; empty: all tasks."""
    name: str = "isolation"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return one group of ours, which does not exist yet."""
        files = machine.files
        cores = split_cores(files, request)
        if cores.because:
            return self.unavailable(cores.because)
        try:
            cpusets = find_cpusets(files)
        except MissingTool as error:
            return self.unavailable(error.what)
        base = _base(cpusets, self.base)
        ours = f"{base}/{GROUP}"
        version_1 = cpusets.version == 1
        reason = "" if version_1 else why_no_partition(files, base)
        if files.exists(ours):
            reason = f"/{ours} already exists: `sudo torchyard machine restore` removes it"
        if reason:
            return self.unavailable(reason)
        requested = f"{_SHIELD if version_1 else request.partition} {cpu_list(cores.measuring)}"
        settings = [self.setting(ours, ABSENT, requested)]
        controllers = files.read(f"{base}/{_CONTROLLERS}").value
        if not version_1 and "cpuset" not in (controllers or "").split():
            place, enabled = f"{base}/{_CONTROLLERS}", controllers or ""
            more = f"{enabled} cpuset".strip()
            settings.insert(0, self.setting(place, enabled, more))
        notes = _notes(files, cpusets, base, cores.measuring, request)
        return self.state(*settings, notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the present state of our group."""
        files = machine.files
        if place.endswith(_CONTROLLERS):
            return _without_others(files, place, files.read(place).or_raise())
        if not files.exists(place):
            return ABSENT
        if _cpusets_at(files, place).version != 1:
            return read_partition(files, place)
        cpus = files.read(f"{place}/{MEASURE}/cpuset.cpus").value
        return f"{_SHIELD} {cpus or 'without cores'}"

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Isolate the cores."""
        files = machine.files
        if place.endswith(_CONTROLLERS):
            files.write(place, "+cpuset")
            return
        kind, _, listed = value.partition(" ")
        cores = cpus_of_list(listed)
        cpusets = _cpusets_at(files, place)
        if cpusets.version == 1:
            make_shield(files, cpusets, place, cores)
        else:
            make_partition(files, cpusets, place, kind, cores)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Move all tasks back and remove our groups."""
        files = machine.files
        if setting.place.endswith(_CONTROLLERS):
            now = self.read(machine, setting.place)
            if not self.same(setting.place, now, setting.found):
                files.write(setting.place, "-cpuset")
            return
        cpusets = _cpusets_at(files, setting.place)
        if cpusets.version == 1:
            remove_groups(files, cpusets, setting.place)
        else:
            remove_partition(files, cpusets, setting.place)

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values are equal; of controllers only cpuset counts."""
        if place.endswith(_CONTROLLERS):
            return ("cpuset" in one.split()) == ("cpuset" in other.split())
        return one == other


def join(machine: Machine, pid: int, *, base: str = "") -> None:
    """Move a process with its threads onto the isolated cores; children started later inherit this.

    Raises MissingTool if no cores are isolated. A restore moves it back to its own group.
    """
    files = machine.files
    cpusets = find_cpusets(files)
    ours = f"{_base(cpusets, base)}/{GROUP}"
    numbers = list(tasks_of(files, str(pid))) if cpusets.version == 1 else [pid]
    for number in numbers:
        cpusets.put(files, measuring_group(files, cpusets, ours, number), number)


def join_setting(machine: Machine, *, base: str = "") -> ProcessSetting:
    """Return the setting that moves a command to the isolated cores when it starts."""
    files = machine.files
    if not files.live:
        return ProcessSetting(unavailable="a copy of a machine cannot run commands")
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
            os.write(descriptor, b"0")  # 0: the writing process
        finally:
            os.close(descriptor)

    return ProcessSetting(apply=enter)


def _base(cpusets: Cpusets, base: str) -> str:
    return f"{cpusets.top}/{base}".rstrip("/")


def _cpusets_at(files: FileTree, ours: str) -> Cpusets:
    """Return the hierarchy of a group of ours, even if the group does not exist."""
    parent = ours.rpartition("/")[0]
    try:
        cpusets = find_cpusets(files)
    except MissingTool:
        cpusets = Cpusets(version=2, top=parent)
    # Identified by its path, because the journal stores nothing else.
    version_1 = files.exists(f"{parent}/cpuset.sched_load_balance")
    return Cpusets(version=1 if version_1 else 2, top=cpusets.top)


def _without_others(files: FileTree, place: str, value: str) -> str:
    """Return the controllers, without `cpuset` if other groups use it meanwhile."""
    used_by_others = (
        "cpuset" in files.read(path).text.split()
        for path in files.paths(f"{place.rpartition('/')[0]}/*/{_CONTROLLERS}")
        if path.split("/")[-2] != GROUP
    )
    words = value.split()
    return " ".join(word for word in words if word != "cpuset") if any(used_by_others) else value


def _notes(
    files: FileTree, cpusets: Cpusets, base: str, cores: tuple[int, ...], request: QuietRequest
) -> tuple[str, ...]:
    notes: list[str] = []
    numbers = set(tasks_of(files, "*"))
    if cpusets.version == 1:
        groups = groups_on_cores(files, cpusets, base, cores)
        numbers = {number for group in groups for number in cpusets.numbers(files, group)}
    bound = movable = 0
    for number in numbers:
        task = read_task(files, number)
        allowed = read_allowed(files, number) or ""
        if task is not None and set(cpus_of_list(allowed)) & set(cores):
            bound += task.bound
            movable += not task.bound
    if bound:
        notes.append(f"{bound} kernel threads are bound to CPUs and stay on the cores")
    if cpusets.version == 1:
        notes.append(
            f"{movable} tasks are moved to the housekeeping cores; containers started later are not"
        )
        if request.partition == "isolated":
            notes.append("control groups version 1 keep load balancing among the cores")
    elif request.partition == "isolated":
        notes.append("no load balancing among the cores: pin every thread, or all run on one")
    return tuple(notes)


ISOLATION_KNOB: Final[Knob] = Isolation()

"""SMT (hyperthreading): take the sibling threads of cores offline.

`smt/control` switches all of them. On kernels without that file (before 4.19), CPUs go offline one
by one. State that the kernel loses with a CPU is recorded and restored: CPUs that were offline
before, cpusets of control groups version 1 that lose the CPU for good, and interrupts that had
nowhere else to go.
"""

from __future__ import annotations

from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.machine.knob import GONE, FileKnob, Knob, Machine, RequestedValues, same_text
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import CPU, FileTree

CONTROL: Final = f"{CPU}/smt/control"
_OFF: Final = ("off", "forceoff")
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


def _requested_values(machine: Machine, request: QuietRequest) -> RequestedValues:
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
    elif present in _OFF:
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
        if going & set(_cpus(files, path))
    ]
    groups.sort(key=lambda path: -path.count("/"))
    interrupts = [
        path
        for path in files.paths("proc/irq/[0-9]*/smp_affinity")
        if (cpus := _cpus(files, path)) and not stay & set(cpus)
    ]
    # Enabling SMT brings up every CPU, also one that was offline before.
    offline = [
        path for path in files.paths(f"{CPU}/cpu[0-9]*/online") if files.read(path).value == "0"
    ]
    return [*interrupts, *groups, *offline]


def _cpus(files: FileTree, path: str) -> tuple[int, ...]:
    text = files.read(path).text
    try:
        return cpus_of_mask(text) if path.endswith("smp_affinity") else cpus_of_list(text)
    except ValueError:
        return ()


def _may_be_gone(place: str) -> bool:
    return place.startswith(("proc/irq/", "sys/fs/cgroup/"))


def _same(place: str, one: str, other: str) -> bool:
    if place == CONTROL:
        return one == other or {one, other} == set(_OFF)
    if _may_be_gone(place) and GONE in (one, other):
        return True
    return same_text(place, one, other)


KNOB: Final[Knob] = SmtKnob(
    name="smt",
    about="SMT (hyperthreading)",
    why=(
        "The SMT threads of a core share its execution units and caches: a busy sibling takes up "
        "to half of the speed, and which threads are siblings changes from run to run. With SMT "
        "off, every thread has its own core. Costs throughput of other programs."
    ),
    effect="large",
    requested=_requested_values,
    same_value=_same,
)

"""SMT (hyperthreading): take the sibling threads of cores offline.

`smt/control` switches all of them. On kernels without that file (before 4.19), CPUs go offline one
by one. State that the kernel loses with a CPU is recorded and restored: CPUs that were offline
before, cpusets of control groups version 1 that lose the CPU for good, and interrupts that had
nowhere else to go.
"""

from __future__ import annotations

from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.machine.knob import FileKnob, Knob, Machine, RequestedValues, same_text
from torchyard.machine.model import Setting, Wish
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.cpu_states import CPU
from torchyard.machine.system.file_tree import FileTree

__all__ = ["KNOB"]

CONTROL: Final = f"{CPU}/smt/control"
_OFF: Final = ("off", "forceoff")
_NEVER: Final = {
    "notsupported": "cores of this processor have one thread",
    "notimplemented": "this kernel cannot switch SMT on this architecture",
}
_GONE: Final = "gone"
"""The value of a group or an interrupt that is not there any more: nothing is to be put back."""


class SmtKnob(FileKnob):
    """Files, some of which may be gone when they are to be put back."""

    def read(self, machine: Machine, place: str) -> str:
        """The present value; containers end and devices are unplugged while a tune stands."""
        if _may_be_gone(place) and not machine.files.exists(place):
            return _GONE
        return super().read(machine, place)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back the found value of what is still there."""
        if self.read(machine, setting.place) != _GONE:
            super().restore(machine, setting)


def _wants(machine: Machine, request: Wish) -> RequestedValues:
    files = machine.files
    topology = Topology.read(files)
    # The kernel keeps the first thread of every core.
    second = tuple(cpu for core in topology.physical for cpu in core[1:])
    present = files.read(CONTROL).value
    values: dict[str, str | None]
    if present is None:
        if not second:
            return RequestedValues(unavailable="no core has a second thread online")
        values = {f"{CPU}/cpu{cpu}/online": "0" for cpu in second}
    elif present in _NEVER:
        return RequestedValues(unavailable=_NEVER[present])
    elif present in _OFF:
        return RequestedValues(values={CONTROL: "off"})
    elif not second:
        # Also `-1`: a kernel that has the switch and never learned how many threads a core has.
        return RequestedValues(
            unavailable=f"no core has a second thread online (/{CONTROL}: {present})"
        )
    else:
        values = {CONTROL: "off"}
    stay = tuple(core[0] for core in topology.physical)
    counts = f"start {len(topology.online)} now and {len(stay)} then"
    notes = [
        f"programs that start a thread for each processor {counts}",
        "programs that are pinned to second threads only are moved by the kernel and stay moved",
    ]
    lost = tuple(cpu for cpu in second if cpu in request.cores)
    if lost:
        notes.append(f"cores {cpu_list(lost)} are second threads: they go offline")
    # A restore goes backwards: the switch first, then what is lost with it.
    forgotten = dict.fromkeys(_forgotten(files, set(second), set(stay)))
    return RequestedValues(values={**forgotten, **values}, notes=tuple(notes))


def _forgotten(files: FileTree, going: set[int], stay: set[int]) -> list[str]:
    """What the kernel forgets when these processors go offline, last first."""
    # Groups below others must fit into them, so restoring begins at the top.
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
    # Switching SMT on brings up every processor, also one that somebody had taken offline.
    offline = [
        path for path in files.paths(f"{CPU}/cpu[0-9]*/online") if files.read(path).value == "0"
    ]
    return [*interrupts, *groups, *offline]


def _cpus(files: FileTree, path: str) -> tuple[int, ...]:
    text = files.read(path).value or ""
    try:
        return cpus_of_mask(text) if path.endswith("smp_affinity") else cpus_of_list(text)
    except ValueError:
        return ()


def _may_be_gone(place: str) -> bool:
    return place.startswith(("proc/irq/", "sys/fs/cgroup/"))


def _same(place: str, one: str, other: str) -> bool:
    if place == CONTROL:
        return one == other or {one, other} == set(_OFF)
    if _may_be_gone(place) and _GONE in (one, other):
        return True
    return same_text(place, one, other)


KNOB: Final[Knob] = SmtKnob(
    name="smt",
    about="second threads of cores (hyperthreading)",
    why=(
        "Two threads of one core share its units and caches: a neighbour that works takes up to "
        "half of the speed away, and which threads are neighbours changes from run to run. Off, "
        "every thread has a core. Costs throughput of everything else on the machine."
    ),
    effect="large",
    wants=_wants,
    same_value=_same,
)

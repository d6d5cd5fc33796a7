"""Which processors the command may run on: those asked for, or one thread of each core."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.core.processor_lists import cpu_list, cpus_of_list
from torchyard.errors import NotAllowed
from torchyard.machine.core_choice import Topology
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Machine, Reach
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting
from torchyard.machine.tasks import read_allowed

__all__ = ["KNOB", "pinned_cpus"]

PLACE: Final = "affinity"


def pinned_cpus(files: FileTree, wish: Wish) -> tuple[int, ...]:
    """Processors for the command: the cores of the wish, or the first thread of each core."""
    allowed = cpus_of_list(read_allowed(files, "self") or "")
    if wish.cores:
        return tuple(sorted(set(wish.cores)))
    topology = Topology.read(files)
    chosen = {next((cpu for cpu in core if cpu in allowed), -1) for core in topology.physical}
    return tuple(sorted(chosen - {-1}))


@dataclass(frozen=True, kw_only=True)
class _Pinning:
    name: str = "pinning"
    about: str = "processors that the command may run on"
    why: str = (
        "Threads that stay on their cores keep their caches, and two threads never share a core "
        "while another is free. Others may still run on the same cores: only setting them apart "
        "(`isolation`, as root) keeps them away, and interrupts come all the same."
    )
    profile: Profile = "cpu"
    effect: Effect = "medium"
    reach: Reach = "process"
    needs_root: bool = False
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """The processors of this process, and those for the command."""
        allowed = read_allowed(machine.files, "self")
        setting = self.prefix(machine, wish)
        if setting.unavailable or allowed is None:
            reason = setting.unavailable or "/proc/self/status has no Cpus_allowed_list"
            return KnobState(knob=self.name, unavailable=reason)
        wanted = cpu_list(pinned_cpus(machine.files, wish))
        found = Setting(knob=self.name, place=PLACE, found=allowed, wanted=wanted)
        notes = ("other programs may run on the same cores",)
        return KnobState(knob=self.name, settings=(found,), notes=notes)

    def prefix(self, machine: Machine, wish: Wish) -> ProcessSetting:
        """`taskset -c LIST`; nothing where the command may run there and nowhere else anyway."""
        files = machine.files
        cpus = pinned_cpus(files, wish)
        online = Topology.read(files).online
        absent = tuple(cpu for cpu in cpus if cpu not in online)
        if not cpus or absent:
            return ProcessSetting(
                unavailable=f"processors {cpu_list(absent)} are not online"
                if absent
                else "/proc/self/status says not which processors this process may use"
            )
        if not wish.cores and cpu_list(cpus) == read_allowed(files, "self"):
            return ProcessSetting()
        return ProcessSetting(
            words=("taskset", "-c", cpu_list(cpus)), apply=lambda: os.sched_setaffinity(0, cpus)
        )

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        """The processors of this process."""
        return read_allowed(machine.files, "self") or ""

    def write(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
        """Never called: it ends with the process."""
        raise NotAllowed("processors are chosen for a command, not for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Nothing to put back."""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """The same processors."""
        return cpus_of_list(one) == cpus_of_list(other)


KNOB: Final[ProcessKnob] = _Pinning()

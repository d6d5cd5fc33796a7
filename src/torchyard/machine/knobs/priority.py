"""The priority of the command: as high as this user may, in the ordinary scheduling class.

Not SCHED_FIFO: threads of OpenMP spin while they wait, and a spinning real-time thread starves the
kernel's own threads on its processor, until the kernel takes 5 % of every second away from it.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import NotAllowed
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Machine, Reach
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting
from torchyard.machine.tasks import read_task

__all__ = ["KNOB"]

PLACE: Final = "nice"
HIGHEST: Final = -20

_CAP_SYS_NICE: Final = 23
_AUTOGROUP: Final = "proc/sys/kernel/sched_autogroup_enabled"


@dataclass(frozen=True, kw_only=True)
class _Priority:
    name: str = "priority"
    about: str = "priority of the command (nice)"
    why: str = (
        "The command gets its turn before programs of lower priority and a longer one. It cannot "
        "keep others off its cores, and does not count against other control groups or, with "
        "automatic grouping, other terminals. Real-time classes are not used: threads that spin "
        "would starve the kernel's own."
    )
    profile: Profile = "cpu"
    effect: Effect = "small"
    reach: Reach = "process"
    needs_root: bool = False
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """The priority of this process, and the one for the command."""
        task = read_task(machine.files, "self")
        setting = self.prefix(machine, wish)
        if setting.unavailable or task is None:
            return KnobState(
                knob=self.name, unavailable=setting.unavailable or "/proc/self/stat says nothing"
            )
        wanted = str(min(task.nice, _lowest_nice(machine.files)))
        found = Setting(knob=self.name, place=PLACE, found=str(task.nice), wanted=wanted)
        grouped = machine.files.read(_AUTOGROUP).value == "1"
        note = "counts among the programs of this terminal only (automatic grouping is on)"
        return KnobState(knob=self.name, settings=(found,), notes=(note,) if grouped else ())

    def prefix(self, machine: Machine, wish: Wish) -> ProcessSetting:  # noqa: ARG002
        """`nice -n STEPS`, which counts from the present priority."""
        task = read_task(machine.files, "self")
        if task is None:
            return ProcessSetting(unavailable="/proc/self/stat does not say the present priority")
        lowest = _lowest_nice(machine.files)
        if lowest >= task.nice:
            return ProcessSetting(
                unavailable=f"this user may not raise it above nice {task.nice} "
                "(CAP_SYS_NICE, or a limit `nice` in /etc/security/limits.conf, would allow it)"
                if task.nice > HIGHEST
                else "",
            )

        def raise_priority() -> None:
            soft, hard = resource.getrlimit(resource.RLIMIT_NICE)
            if soft != hard:  # what the limit allows at most is allowed at once
                resource.setrlimit(resource.RLIMIT_NICE, (hard, hard))
            os.setpriority(os.PRIO_PROCESS, 0, lowest)

        return ProcessSetting(words=("nice", "-n", str(lowest - task.nice)), apply=raise_priority)

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        """The priority of this process."""
        task = read_task(machine.files, "self")
        return "" if task is None else str(task.nice)

    def write(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
        """Never called: it ends with the process."""
        raise NotAllowed("a priority is chosen for a command, not for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Nothing to put back."""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal numbers."""
        return one == other


def _lowest_nice(files: FileTree) -> int:
    """The lowest number, which is the highest priority, that this process may take."""
    text = files.read("proc/self/status").value or ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        capable = int(fields.get("CapEff", "0"), 16) >> _CAP_SYS_NICE & 1
    except ValueError:
        capable = 0
    # The capability counts only in the first user namespace, where all users are mapped to
    # themselves; root of a container without privileges has it in vain.
    mapped = (files.read("proc/self/uid_map").value or "0 0 4294967295").split()
    if capable and mapped == ["0", "0", "4294967295"]:
        return HIGHEST
    for line in (files.read("proc/self/limits").value or "").splitlines():
        if line.startswith("Max nice priority"):
            hard = line.split()[4:5]
            # The kernel counts this limit from 1 (nice 19) to 40 (nice -20).
            if hard and hard[0].isdigit():
                return max(HIGHEST, 20 - int(hard[0]))
            return HIGHEST if hard == ["unlimited"] else 20
    return 20


KNOB: Final[ProcessKnob] = _Priority()

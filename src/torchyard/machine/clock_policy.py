"""Policies of cpufreq: groups of processors that share one clock, each with a folder of files.

Says which there are, and lets knobs of their files pass over processors that are offline. Knows
nothing of governors, of limits and of turbo.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.core.machine import Setting
from torchyard.machine.file_knob import FileKnob
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import LeftAlone, Machine

__all__ = ["CPU", "CPUFREQ", "NO_POLICY", "ProcessorKnob", "leave_offline_alone", "policies"]

CPU: Final = "sys/devices/system/cpu"
CPUFREQ: Final = f"{CPU}/cpufreq"
NO_POLICY: Final = (
    f"/{CPUFREQ} has no policy: firmware or a hypervisor chooses the clocks, not this kernel"
)


def policies(files: FileTree) -> list[str]:
    """Folders of the policies that have a processor online.

    The folder of a policy stays when its last processor goes offline, but none of its files can be
    read then (EBUSY). Kernels before 4.2 removed it.
    """
    return [path for path in files.paths(f"{CPUFREQ}/policy[0-9]*") if _has_processor(files, path)]


def leave_offline_alone(files: FileTree, place: str) -> None:
    """Raise `LeftAlone` for a place of processors that are offline: nothing runs at that clock.

    Every processor was surveyed before the first write; SMT may have gone off in between.
    """
    policy = re.match(rf"{CPUFREQ}/policy\d+", place)
    if policy is not None and not _has_processor(files, policy[0]):
        raise LeftAlone(f"no processor of /{policy[0]} is online")
    cpu = re.match(rf"{CPU}/cpu\d+", place)
    # The first processor of most machines cannot go offline and has no such file.
    if cpu is not None and files.read(f"{cpu[0]}/online").value == "0":
        raise LeftAlone(f"/{cpu[0]} is offline")


class ProcessorKnob(FileKnob):
    """A knob of files that belong to policies or to single processors."""

    def write(self, machine: Machine, setting: Setting) -> None:
        """Hand the wanted value to the kernel, where a processor runs."""
        leave_offline_alone(machine.files, setting.place)
        super().write(machine, setting)


def _has_processor(files: FileTree, policy: str) -> bool:
    return bool(files.read(f"{policy}/affected_cpus").value)

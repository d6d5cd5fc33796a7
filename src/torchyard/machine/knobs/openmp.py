"""Variables for the runtime of OpenMP: how many threads, and each one on its own core.

Off by default, because binding has a side effect that was measured with torch 2.13: when OpenMP
binds threads (OMP_PROC_BIND, GOMP_CPU_AFFINITY), importing torch leaves the importing thread with
the first core only, and every process that it starts afterwards, workers of a data loader or of
the compiler, inherits that one core.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import NotAllowed
from torchyard.machine.knob import Machine, Reach
from torchyard.machine.knobs.pinning import pinned_cpus
from torchyard.machine.process_knob import ProcessKnob, ProcessSetting

__all__ = ["KNOB"]

THREADS: Final = "OMP_NUM_THREADS"
BINDING: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Any of these says where threads go; two that disagree are worse than none."""

_INTEL_OR_LLVM: Final = re.compile(r"(^|[/: ])lib(iomp5|omp)\.so")
_UNSET: Final = "not set"


@dataclass(frozen=True, kw_only=True)
class _OpenMp:
    name: str = "openmp"
    about: str = "threads of OpenMP, one on each core"
    why: str = (
        "Threads that move between cores lose their caches, and two on one core wait for each "
        "other at every parallel loop. One bound to each core does neither. Other programs and "
        "interrupts still come to the same cores; processes that the command starts inherit the "
        "first core only."
    )
    profile: Profile = "cpu"
    effect: Effect = "medium"
    reach: Reach = "process"
    needs_root: bool = False
    default: bool = False

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Each variable as it is and as the command would get it."""
        cpus = pinned_cpus(machine.files, wish)
        setting = self.prefix(machine, wish)
        if setting.unavailable:
            return KnobState(knob=self.name, unavailable=setting.unavailable)
        settings = tuple(
            Setting(knob=self.name, place=name, found=os.environ.get(name, _UNSET), wanted=value)
            for name, value in setting.variables
        )
        return KnobState(knob=self.name, settings=settings, notes=_notes(os.environ, cpus))

    def prefix(self, machine: Machine, wish: Wish) -> ProcessSetting:
        """Variables only; those that are set already are left out, and binding with them."""
        cpus = pinned_cpus(machine.files, wish)
        if not cpus:
            return ProcessSetting(unavailable="it is not known which processors there are")
        variables = {THREADS: str(len(cpus))} | _binding(cpus, os.environ)
        return ProcessSetting(
            variables=tuple(
                (name, value) for name, value in variables.items() if name not in os.environ
            )
        )

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        """The variable of this process."""
        return os.environ.get(place, _UNSET)

    def write(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
        """Never called: variables end with the process."""
        raise NotAllowed("variables are chosen for a command, not for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Nothing to put back."""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal texts."""
        return one == other


def _binding(cpus: tuple[int, ...], environment: Mapping[str, str]) -> dict[str, str]:
    threads = environment.get(THREADS, str(len(cpus)))
    if any(name in environment for name in BINDING) or threads != str(len(cpus)):
        return {}
    if _INTEL_OR_LLVM.search(environment.get("LD_PRELOAD", "")):
        # Their own words alone: two that say where threads go would compete.
        listed = ",".join(map(str, cpus))
        return {
            "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{listed}]",
            "KMP_BLOCKTIME": "1",
        }
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus)}


def _notes(environment: Mapping[str, str], cpus: tuple[int, ...]) -> tuple[str, ...]:
    notes: list[str] = []
    theirs = [name for name in BINDING if name in environment]
    if theirs:
        notes.append(f"where threads go is left as {theirs[0]} says")
    if THREADS in environment:
        notes.append(f"{THREADS} is set already and stays {environment[THREADS]}")
    if theirs or _binding(cpus, environment):
        notes.append(
            "importing torch leaves its main thread, and every process started from it, with the "
            "first core only"
        )
    return tuple(notes)


KNOB: Final[ProcessKnob] = _OpenMp()

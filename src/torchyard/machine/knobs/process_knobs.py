"""Settings of one process and its children: CPU pinning, OpenMP, priority, ASLR.

They need no root and nothing has to be restored: they end with the process. The starting process
sets them for its child between fork and exec; without a command they are shown as words for a
shell.

- Pinning: the requested CPUs, or one thread of each core.
- OpenMP variables are off by default, because binding has a side effect, measured with torch
  2.13: when OpenMP binds threads (OMP_PROC_BIND, GOMP_CPU_AFFINITY), importing torch leaves the
  importing thread with the first core only, and every process that it starts afterwards, workers
  of a data loader or of the compiler, inherits that one core.
- Priority: as high as this user may, in the ordinary scheduling class. Not SCHED_FIFO: OpenMP
  threads spin while they wait, and a spinning real-time thread starves the kernel's own threads
  on its CPU, until the kernel takes 5 % of every second away from it.
- Address-space randomization of the command alone, through its personality.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import NotAllowed
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import read_allowed, read_task


def nothing_to_apply() -> None:
    """Do nothing, for settings that are only variables."""


@dataclass(frozen=True, kw_only=True)
class ProcessSetting:
    """What one knob does to a process at its start."""

    words: tuple[str, ...] = ()
    """Prefix of an equivalent shell command: ("taskset", "-c", "2-3")."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables. Those that the user has set are not changed."""
    apply: Callable[[], None] = nothing_to_apply
    """Runs in the child between fork and exec: only system calls, with all imports and lookups
    done before. Raises OSError if the kernel refuses."""
    unavailable: str = ""
    """Why it is unavailable here; the rest is then empty."""


@dataclass(frozen=True, kw_only=True)
class ProcessKnob(Knob):
    """A knob of one process: nothing is written to the machine, and nothing has to be restored.

    `survey` returns the value of this process and the one the command would get.
    """

    reach: Reach = "process"
    needs_root: bool = False

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Describe the setting of the command if it is available."""
        setting = self.prefix(machine, request)
        if setting.unavailable:
            return self.unavailable(setting.unavailable)
        return self.describe(machine, request)

    def prefix(self, machine: Machine, request: QuietRequest) -> ProcessSetting:
        """Return the setting for the command. Reads only, never raises."""
        raise NotImplementedError

    def describe(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return the value of this process and the one of the command, which is available."""
        raise NotImplementedError

    def put(self, machine: Machine, place: str, value: str) -> None:  # noqa: ARG002
        """Refuse: the setting is made for a command."""
        raise NotAllowed(f"{self.name} is set for a command, not for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Do nothing: the setting ends with the process."""


PINNING_PLACE: Final = "affinity"


def pinned_cpus(files: FileTree, request: QuietRequest) -> tuple[int, ...]:
    """Return the CPUs for the command: the requested cores, or the first thread of each core."""
    allowed = cpus_of_list(read_allowed(files, "self") or "")
    if request.cores:
        return tuple(sorted(set(request.cores)))
    topology = Topology.read(files)
    chosen = {next((cpu for cpu in core if cpu in allowed), -1) for core in topology.physical}
    return tuple(sorted(chosen - {-1}))


@dataclass(frozen=True, kw_only=True)
class _Pinning(ProcessKnob):
    name: str = "pinning"

    def describe(self, machine: Machine, request: QuietRequest) -> KnobState:
        allowed = read_allowed(machine.files, "self")
        if allowed is None:
            return self.unavailable("/proc/self/status has no Cpus_allowed_list")
        affinity = self.setting(
            PINNING_PLACE, allowed, cpu_list(pinned_cpus(machine.files, request))
        )
        return self.state(affinity, notes=("other programs may run on the same cores",))

    def prefix(self, machine: Machine, request: QuietRequest) -> ProcessSetting:
        """Return `taskset -c LIST`; empty if the command has this affinity anyway."""
        files = machine.files
        cpus = pinned_cpus(files, request)
        online = Topology.read(files).online
        absent = tuple(cpu for cpu in cpus if cpu not in online)
        if not cpus or absent:
            return ProcessSetting(
                unavailable=f"CPUs {cpu_list(absent)} are not online"
                if absent
                else "/proc/self/status does not report the affinity of this process"
            )
        if not request.cores and cpu_list(cpus) == read_allowed(files, "self"):
            return ProcessSetting()
        return ProcessSetting(
            words=("taskset", "-c", cpu_list(cpus)), apply=lambda: os.sched_setaffinity(0, cpus)
        )

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        return read_allowed(machine.files, "self") or ""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        return cpus_of_list(one) == cpus_of_list(other)


PINNING_KNOB: Final[ProcessKnob] = _Pinning()


THREADS: Final = "OMP_NUM_THREADS"
BINDING: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that bind threads; two that disagree are worse than none."""

_INTEL_OR_LLVM: Final = re.compile(r"(^|[/: ])lib(iomp5|omp)\.so")
_UNSET: Final = "not set"


@dataclass(frozen=True, kw_only=True)
class _OpenMp(ProcessKnob):
    name: str = "openmp"

    def describe(self, machine: Machine, request: QuietRequest) -> KnobState:
        settings = (
            self.setting(name, os.environ.get(name, _UNSET), value)
            for name, value in self.prefix(machine, request).variables
        )
        notes = _notes(os.environ, pinned_cpus(machine.files, request))
        return self.state(*settings, notes=notes)

    def prefix(self, machine: Machine, request: QuietRequest) -> ProcessSetting:
        """Return variables only; without those that are set already, and then without binding."""
        cpus = pinned_cpus(machine.files, request)
        if not cpus:
            return ProcessSetting(unavailable="the CPUs of this machine are unknown")
        variables = {THREADS: str(len(cpus))} | _binding(cpus, os.environ)
        return ProcessSetting(
            variables=tuple(
                (name, value) for name, value in variables.items() if name not in os.environ
            )
        )

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        return os.environ.get(place, _UNSET)


def _binding(cpus: tuple[int, ...], environment: Mapping[str, str]) -> dict[str, str]:
    threads = environment.get(THREADS, str(len(cpus)))
    if any(name in environment for name in BINDING) or threads != str(len(cpus)):
        return {}
    if _INTEL_OR_LLVM.search(environment.get("LD_PRELOAD", "")):
        # Only their own variables: two kinds of binding would conflict.
        listed = ",".join(map(str, cpus))
        return {
            "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{listed}]",
            "KMP_BLOCKTIME": "1",
        }
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus)}


def _notes(environment: Mapping[str, str], cpus: tuple[int, ...]) -> tuple[str, ...]:
    notes: list[str] = []
    user_binding = [name for name in BINDING if name in environment]
    if user_binding:
        notes.append(f"{user_binding[0]} is set already and determines the binding")
    if THREADS in environment:
        notes.append(f"{THREADS} is set already and stays {environment[THREADS]}")
    if user_binding or _binding(cpus, environment):
        notes.append(
            "importing torch restricts its main thread, and every process started from it, to the "
            "first core"
        )
    return tuple(notes)


OPENMP_KNOB: Final[ProcessKnob] = _OpenMp()


PRIORITY_PLACE: Final = "nice"
HIGHEST: Final = -20

_CAP_SYS_NICE: Final = 23
_AUTOGROUP: Final = "proc/sys/kernel/sched_autogroup_enabled"


@dataclass(frozen=True, kw_only=True)
class _Priority(ProcessKnob):
    name: str = "priority"

    def describe(self, machine: Machine, request: QuietRequest) -> KnobState:  # noqa: ARG002
        nice = self.read(machine, PRIORITY_PLACE)
        priority = str(min(int(nice), _lowest_nice(machine.files)))
        grouped = machine.files.read(_AUTOGROUP).value == "1"
        note = "applies only among the programs of this terminal (autogroup is on)"
        return self.state(
            self.setting(PRIORITY_PLACE, nice, priority), notes=(note,) if grouped else ()
        )

    def prefix(self, machine: Machine, request: QuietRequest) -> ProcessSetting:  # noqa: ARG002
        """Return `nice -n STEPS`, relative to the present priority."""
        task = read_task(machine.files, "self")
        if task is None:
            return ProcessSetting(
                unavailable="cannot read the present priority from /proc/self/stat"
            )
        lowest = _lowest_nice(machine.files)
        if lowest >= task.nice:
            return ProcessSetting(
                unavailable=f"this user may not go below nice {task.nice} "
                "(needs CAP_SYS_NICE, or a `nice` limit in /etc/security/limits.conf)"
                if task.nice > HIGHEST
                else ""
            )

        def raise_priority() -> None:
            soft, hard = resource.getrlimit(resource.RLIMIT_NICE)
            if soft != hard:  # raise the soft limit first
                resource.setrlimit(resource.RLIMIT_NICE, (hard, hard))
            os.setpriority(os.PRIO_PROCESS, 0, lowest)

        return ProcessSetting(words=("nice", "-n", str(lowest - task.nice)), apply=raise_priority)

    def read(self, machine: Machine, place: str) -> str:  # noqa: ARG002
        task = read_task(machine.files, "self")
        return "" if task is None else str(task.nice)


def _lowest_nice(files: FileTree) -> int:
    """Return the lowest nice value (the highest priority) that this process may set."""
    fields = files.read("proc/self/status").fields
    try:
        capable = int(fields.get("CapEff", "0"), 16) >> _CAP_SYS_NICE & 1
    except ValueError:
        capable = 0
    # The capability counts only in the initial user namespace, where all users are mapped to
    # themselves; for root of an unprivileged container it has no effect.
    mapped = (files.read("proc/self/uid_map").value or "0 0 4294967295").split()
    if capable and mapped == ["0", "0", "4294967295"]:
        return HIGHEST
    for line in files.read("proc/self/limits").text.splitlines():
        if line.startswith("Max nice priority"):
            hard = line.split()[4:5]
            # The kernel counts this limit from 1 (nice 19) to 40 (nice -20).
            if hard and hard[0].isdigit():
                return max(HIGHEST, 20 - int(hard[0]))
            return HIGHEST if hard == ["unlimited"] else 20
    return 20


PRIORITY_KNOB: Final[ProcessKnob] = _Priority()


PROCESS_ASLR_PLACE: Final = "proc/self/personality"
NO_RANDOMIZATION: Final = 0x0040000
_ASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class _ProcessAslr(ProcessKnob):
    name: str = "process-aslr"

    def describe(self, machine: Machine, request: QuietRequest) -> KnobState:
        now = self.read(machine, PROCESS_ASLR_PLACE)
        if request.randomize == "keep":
            setting = self.setting(PROCESS_ASLR_PLACE, now, now)
            return self.state(setting, notes=("kept: set it with --aslr on or --aslr off",))
        return self.state(self.setting(PROCESS_ASLR_PLACE, now, request.randomize))

    def prefix(self, machine: Machine, request: QuietRequest) -> ProcessSetting:
        """Return `setarch MACHINE -R` for off; there is no common command for on."""
        reading = machine.files.read(PROCESS_ASLR_PLACE)
        if reading.value is None:
            return ProcessSetting(unavailable=reading.because)
        if request.randomize == "keep":
            return ProcessSetting()
        if not machine.files.live:
            return ProcessSetting(unavailable="a copy of a machine cannot run commands")
        libc = ctypes.CDLL(None, use_errno=True)
        now = libc.personality(ctypes.c_ulong(_ASK))
        off = request.randomize == "off"
        requested = now | NO_RANDOMIZATION if off else now & ~NO_RANDOMIZATION
        if now < 0 or not _accepts(libc, requested, now):
            return ProcessSetting(
                unavailable="the kernel refuses it, as common seccomp filters of containers do"
            )

        def choose() -> None:
            if libc.personality(ctypes.c_ulong(requested)) < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

        words = ("setarch", platform.machine(), "-R") if off else ()
        return ProcessSetting(words=words, apply=choose)

    def read(self, machine: Machine, place: str) -> str:
        text = machine.files.read(place).value or "0"
        return "off" if int(text, 16) & NO_RANDOMIZATION else "on"


def _accepts(libc: ctypes.CDLL, personality: int, now: int) -> bool:
    """Try a personality on this thread and revert it: seccomp filters allow only the query.

    Harmless here, because it takes effect at the next exec of this thread.
    """
    accepted = libc.personality(ctypes.c_ulong(personality)) >= 0
    if accepted:
        libc.personality(ctypes.c_ulong(now))
    return bool(accepted)


PROCESS_ASLR_KNOB: Final[ProcessKnob] = _ProcessAslr()

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
from typing import Final, Protocol, runtime_checkable

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import NotAllowed
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import read_allowed, read_task


def nothing_to_apply() -> None:
    """For settings that are variables only."""


@dataclass(frozen=True, kw_only=True)
class ProcessSetting:
    """What one knob does to a process that is about to start."""

    words: tuple[str, ...] = ()
    """What a shell puts in front of the command to get the same: ("taskset", "-c", "2-3")."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of its environment. Those that the user has set already stay as they are."""
    apply: Callable[[], None] = nothing_to_apply
    """Runs in the child before it becomes the command: system calls only, all imports and
    look-ups done before. Raises OSError when the kernel refuses."""
    unavailable: str = ""
    """Why nothing can be done here; then the rest is empty."""


@runtime_checkable
class ProcessKnob(Knob, Protocol):
    """A knob with reach "process".

    `survey` shows what this process has now and what the command would get, as for every knob.
    `write` and `restore` are never called.
    """

    def prefix(self, machine: Machine, request: Wish) -> ProcessSetting:
        """What to do to the command. Reads only, never raises."""


PINNING_PLACE: Final = "affinity"


def pinned_cpus(files: FileTree, request: Wish) -> tuple[int, ...]:
    """Processors for the command: the cores of the wish, or the first thread of each core."""
    allowed = cpus_of_list(read_allowed(files, "self") or "")
    if request.cores:
        return tuple(sorted(set(request.cores)))
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

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """The processors of this process, and those for the command."""
        allowed = read_allowed(machine.files, "self")
        setting = self.prefix(machine, request)
        if setting.unavailable or allowed is None:
            reason = setting.unavailable or "/proc/self/status has no Cpus_allowed_list"
            return KnobState(knob=self.name, unavailable=reason)
        wanted = cpu_list(pinned_cpus(machine.files, request))
        found = Setting(knob=self.name, place=PINNING_PLACE, found=allowed, wanted=wanted)
        notes = ("other programs may run on the same cores",)
        return KnobState(knob=self.name, settings=(found,), notes=notes)

    def prefix(self, machine: Machine, request: Wish) -> ProcessSetting:
        """`taskset -c LIST`; nothing where the command may run there and nowhere else anyway."""
        files = machine.files
        cpus = pinned_cpus(files, request)
        online = Topology.read(files).online
        absent = tuple(cpu for cpu in cpus if cpu not in online)
        if not cpus or absent:
            return ProcessSetting(
                unavailable=f"processors {cpu_list(absent)} are not online"
                if absent
                else "/proc/self/status says not which processors this process may use"
            )
        if not request.cores and cpu_list(cpus) == read_allowed(files, "self"):
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


PINNING_KNOB: Final[ProcessKnob] = _Pinning()


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

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Each variable as it is and as the command would get it."""
        cpus = pinned_cpus(machine.files, request)
        setting = self.prefix(machine, request)
        if setting.unavailable:
            return KnobState(knob=self.name, unavailable=setting.unavailable)
        settings = tuple(
            Setting(knob=self.name, place=name, found=os.environ.get(name, _UNSET), wanted=value)
            for name, value in setting.variables
        )
        return KnobState(knob=self.name, settings=settings, notes=_notes(os.environ, cpus))

    def prefix(self, machine: Machine, request: Wish) -> ProcessSetting:
        """Variables only; those that are set already are left out, and binding with them."""
        cpus = pinned_cpus(machine.files, request)
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


OPENMP_KNOB: Final[ProcessKnob] = _OpenMp()


PRIORITY_PLACE: Final = "nice"
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

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """The priority of this process, and the one for the command."""
        task = read_task(machine.files, "self")
        setting = self.prefix(machine, request)
        if setting.unavailable or task is None:
            return KnobState(
                knob=self.name, unavailable=setting.unavailable or "/proc/self/stat says nothing"
            )
        wanted = str(min(task.nice, _lowest_nice(machine.files)))
        found = Setting(knob=self.name, place=PRIORITY_PLACE, found=str(task.nice), wanted=wanted)
        grouped = machine.files.read(_AUTOGROUP).value == "1"
        note = "counts among the programs of this terminal only (automatic grouping is on)"
        return KnobState(knob=self.name, settings=(found,), notes=(note,) if grouped else ())

    def prefix(self, machine: Machine, request: Wish) -> ProcessSetting:  # noqa: ARG002
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


PRIORITY_KNOB: Final[ProcessKnob] = _Priority()


PROCESS_ASLR_PLACE: Final = "proc/self/personality"
NO_RANDOMISATION: Final = 0x0040000
_ASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class _ProcessAslr:
    name: str = "process-aslr"
    about: str = "address randomisation of the command"
    why: str = (
        "Without randomisation every launch of the same program has the same memory layout: "
        "launches agree better, and all have the bias of that one layout, so two builds may "
        "differ by it alone. Physical pages differ all the same. Needs no root, unlike `aslr`."
    )
    profile: Profile = "cpu"
    effect: Effect = "medium"
    reach: Reach = "process"
    needs_root: bool = False
    default: bool = False

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Whether this process was started with it, and the command would be."""
        setting = self.prefix(machine, request)
        if setting.unavailable:
            return KnobState(knob=self.name, unavailable=setting.unavailable)
        now = self.read(machine, PROCESS_ASLR_PLACE)
        wanted = now if request.randomize == "keep" else request.randomize
        item = Setting(knob=self.name, place=PROCESS_ASLR_PLACE, found=now, wanted=wanted)
        notes = ("kept as it is: ask with --aslr on or --aslr off",)
        return KnobState(
            knob=self.name, settings=(item,), notes=notes if request.randomize == "keep" else ()
        )

    def prefix(self, machine: Machine, request: Wish) -> ProcessSetting:
        """`setarch MACHINE -R` for off; on has no word that every system knows."""
        found = machine.files.read(PROCESS_ASLR_PLACE)
        if found.value is None:
            return ProcessSetting(unavailable=found.because)
        if request.randomize == "keep":
            return ProcessSetting()
        if not machine.files.live:
            return ProcessSetting(unavailable="a copy of a machine runs nothing")
        libc = ctypes.CDLL(None, use_errno=True)
        now = libc.personality(ctypes.c_ulong(_ASK))
        off = request.randomize == "off"
        wanted = now | NO_RANDOMISATION if off else now & ~NO_RANDOMISATION
        if now < 0 or not _takes(libc, wanted, now):
            return ProcessSetting(
                unavailable="the kernel refuses it, as the usual seccomp filters of containers do"
            )

        def choose() -> None:
            if libc.personality(ctypes.c_ulong(wanted)) < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

        words = ("setarch", platform.machine(), "-R") if off else ()
        return ProcessSetting(words=words, apply=choose)

    def read(self, machine: Machine, place: str) -> str:
        """Whether the addresses of this process are random."""
        text = machine.files.read(place).value or "0"
        return "off" if int(text, 16) & NO_RANDOMISATION else "on"

    def write(self, machine: Machine, setting: Setting) -> None:  # noqa: ARG002
        """Never called: it ends with the process."""
        raise NotAllowed("this is chosen for a command; `aslr` is for the machine")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Nothing to put back."""

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal words."""
        return one == other


def _takes(libc: ctypes.CDLL, wanted: int, now: int) -> bool:
    """Try it on this thread and take it back: filters let the question pass and refuse the change.

    Harmless here, because it counts from the next program that this thread would become.
    """
    took = libc.personality(ctypes.c_ulong(wanted)) >= 0
    if took:
        libc.personality(ctypes.c_ulong(now))
    return bool(took)


PROCESS_ASLR_KNOB: Final[ProcessKnob] = _ProcessAslr()

"""Keep interrupts and workqueues on the housekeeping cores; stop irqbalance.

- Interrupts that belong to one CPU, or whose driver spreads them, cannot be moved: such files are
  read-only, or the write is refused with EIO (newer kernels: EPERM, seen on 6.18).
- irqbalance is stopped through systemd where systemd runs it. Otherwise its process is suspended,
  not ended: that can be undone without knowing how it was started.
- The kernel shows two workqueue masks: `cpumask`, in force, and `cpumask_requested` (newer
  kernels), from which the CPUs of isolated partitions are removed. The requested one is restored,
  or a partition of another program would reduce the mask permanently. Both are written through
  `cpumask`.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from torchyard.core.cpu_lists import cpu_mask, cpus_of_mask
from torchyard.errors import NotAllowed, UsageError
from torchyard.machine.knob import GONE, FileKnob, Knob, Machine, RequestedValues
from torchyard.machine.model import KnobState, QuietRequest, Setting
from torchyard.machine.system.cores import split_cores
from torchyard.machine.system.file_tree import FileTree, WriteRefused, missing_programs, run_program
from torchyard.machine.system.tasks import Task, read_task

RUNNING: Final = "running"
STOPPED: Final = "stopped"

_PROGRAM: Final = "irqbalance"
_LIMIT_S: Final = 30.0
_SUSPENDED_S: Final = 2.0
_UNIT: Final = re.compile(r"/([A-Za-z0-9@_.\-]+\.service)(/|$)")
_PROCESS: Final = re.compile(r"process (\d+) started (\d+)")


@dataclass(frozen=True, kw_only=True)
class _Irqbalance(Knob):
    name: str = "irqbalance"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:  # noqa: ARG002
        """Return its service, or its process if it is not a service."""
        files = machine.files
        tasks = list(_tasks(files))
        if not tasks:
            why = f"{_PROGRAM} is not running"
            if not any(files.exists(f"{folder}/{_PROGRAM}") for folder in _FOLDERS):
                why += " and is not installed"
            return self.unavailable(why)
        settings: list[Setting] = []
        for task in tasks:
            unit = _unit(files, task)
            if unit:
                missing = missing_programs(files, "systemctl")
            else:
                missing = "" if files.live else "cannot stop processes of a copy of a machine"
            if missing:
                return self.unavailable(missing)
            place = unit or f"process {task.number} started {task.start_ticks}"
            settings.append(self.setting(place, self.read(machine, place), STOPPED))
        return self.state(*settings)

    def read(self, machine: Machine, place: str) -> str:
        match = _PROCESS.fullmatch(place)
        if match is None:
            units = (_unit(machine.files, task) for task in _tasks(machine.files))
            return RUNNING if place in units else STOPPED
        task = _same_task(machine.files, match)
        if task is None:
            return GONE
        return STOPPED if task.state in ("T", "t") else RUNNING

    def restore(self, machine: Machine, setting: Setting) -> None:
        if self.read(machine, setting.place) not in (setting.found, GONE):
            self.put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        return one == other or GONE in (one, other)

    def put(self, machine: Machine, place: str, value: str) -> None:
        match = _PROCESS.fullmatch(place)
        if match is None:
            if not _UNIT.fullmatch(f"/{place}"):
                raise UsageError(f"{place!r} is not a service name")
            verb = "start" if value == RUNNING else "stop"
            run_program(machine.files, "systemctl", verb, place, limit_s=_LIMIT_S)
            return
        if not machine.files.live:
            raise NotAllowed("cannot stop processes of a copy of a machine")
        self._signal(machine, match, value)

    def _signal(self, machine: Machine, match: re.Match[str], state: str) -> None:
        # By descriptor: a PID can be reused, a descriptor cannot.
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(match[1]))
            try:
                if _same_task(machine.files, match) is None:
                    return
                number = signal.SIGCONT if state == RUNNING else signal.SIGSTOP
                signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        deadline = time.monotonic() + _SUSPENDED_S
        while self.read(machine, match[0]) not in (state, GONE) and time.monotonic() < deadline:
            time.sleep(0.005)


_FOLDERS: Final = ("usr/sbin", "usr/bin", "sbin", "bin", "usr/local/sbin")


def _tasks(files: FileTree) -> Iterator[Task]:
    for name in files.names("proc"):
        if name.isdigit() and files.read(f"proc/{name}/comm").value == _PROGRAM:
            task = read_task(files, name)
            if task is not None and task.state != "Z":
                yield task


def _same_task(files: FileTree, match: re.Match[str]) -> Task | None:
    task = read_task(files, match[1])
    if task is None or task.start_ticks != int(match[2]) or task.state == "Z":
        return None
    return task


def _unit(files: FileTree, task: Task) -> str:
    """Return its systemd service; empty if there is none."""
    if files.read("proc/1/comm").value != "systemd":
        return ""
    match = _UNIT.search(files.read(f"proc/{task.number}/cgroup").text)
    return match[1] if match else ""


IRQBALANCE_KNOB: Final[Knob] = _Irqbalance()


DEFAULT: Final = "proc/irq/default_smp_affinity"
_HANDLED_BY: Final = " handled by "


def same_mask(place: str, one: str, other: str) -> bool:  # noqa: ARG001
    """Whether two masks contain the same CPUs: `ff` and `00000000,000000ff`."""
    try:
        return cpus_of_mask(_mask_of(one)) == cpus_of_mask(_mask_of(other))
    except ValueError:
        return one == other or GONE in (one, other)


def _mask_of(value: str) -> str:
    return value.partition(_HANDLED_BY)[0]


def mask_text(cpus: tuple[int, ...]) -> str:
    """Format a mask as the kernel does on small machines: `3`, not `00000003`."""
    return cpu_mask(cpus).lstrip("0,") or "0"


@dataclass(frozen=True, kw_only=True)
class _Interrupts(FileKnob):
    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Append the CPU that handles the interrupt now to each mask: `3 handled by 1`."""
        state = super().survey(machine, request)
        settings = (
            replace(setting, found=setting.found + _handler(machine.files, setting.place))
            for setting in state.settings
        )
        return replace(state, settings=tuple(settings))

    def read(self, machine: Machine, place: str) -> str:
        if place != DEFAULT and not machine.files.exists(place):
            return GONE
        return super().read(machine, place)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Write the requested mask, and explain a refusal."""
        try:
            super().write(machine, setting)
        except WriteRefused as error:
            if setting.place == DEFAULT or error.code not in (errno.EIO, errno.EPERM):
                raise
            number = setting.place.split("/")[2]
            raise NotAllowed(
                f"interrupt {number} is bound to one CPU or managed by its driver and stays there",
                why=error.what,
            ) from error

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Write the original mask if the interrupt still exists.

        Some kernels leave an interrupt where it is if the new mask allows it, so it is first moved
        to the CPU that handled it. Other kernels choose again.
        """
        present = self.read(machine, setting.place)
        if present == GONE or self.same(setting.place, present, setting.found):
            return
        mask, _, handler = setting.found.partition(_HANDLED_BY)
        if handler:
            with suppress(WriteRefused):
                machine.files.write(setting.place, handler)
        machine.files.write(setting.place, mask)


def _interrupt_values(machine: Machine, request: QuietRequest) -> RequestedValues:
    files = machine.files
    if not files.exists(DEFAULT):
        return RequestedValues(
            unavailable="this kernel does not support interrupt affinity (no /proc/irq masks)"
        )
    masks = files.paths("proc/irq/[0-9]*/smp_affinity")
    movable = [path for path in masks if _is_writable(files, path)]
    cores = split_cores(files, request)
    if cores.because:
        return RequestedValues(unavailable=cores.because)
    fixed = len(masks) - len(movable)
    note = f"{fixed} of {len(masks)} interrupts are bound to one CPU or managed by their driver"
    return RequestedValues(
        values={
            DEFAULT: mask_text(cores.housekeeping),
            **{path: _on_housekeeping(files, path, cores.housekeeping) for path in movable},
        },
        notes=(note,) if fixed else (),
    )


def _is_writable(files: FileTree, path: str) -> bool:
    """Whether the mask is writable for root, also if this process is not root."""
    try:
        return bool(files.path(path).stat().st_mode & 0o222)
    except OSError:  # removed meanwhile
        return False


def _handler(files: FileTree, place: str) -> str:
    """Return the suffix with the mask of the handling CPU; empty if the kernel does not report it."""
    text = files.read(place.replace("/smp_affinity", "/effective_affinity")).text
    return f"{_HANDLED_BY}{text}" if place != DEFAULT and text.strip("0,") else ""


def _on_housekeeping(files: FileTree, path: str, housekeeping: tuple[int, ...]) -> str | None:
    """Return the housekeeping CPUs of its mask, so that it stays near its device, or all of them."""
    try:
        now = cpus_of_mask(files.read(path).text)
    except ValueError:
        return None
    return mask_text(tuple(cpu for cpu in now if cpu in housekeeping) or housekeeping)


INTERRUPTS_KNOB: Final[Knob] = _Interrupts(
    name="interrupts", requested=_interrupt_values, same_value=same_mask
)


FOLDER: Final = "sys/devices/virtual/workqueue"
MASK: Final = f"{FOLDER}/cpumask"
REQUESTED: Final = f"{FOLDER}/cpumask_requested"


@dataclass(frozen=True, kw_only=True)
class _Workqueues(FileKnob):
    def restore(self, machine: Machine, setting: Setting) -> None:
        """Always write the original mask: the one in force may differ from the requested one."""
        self.put(machine, setting.place, setting.found)

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Write the mask in force: the requested one is read-only."""
        machine.files.write(MASK if place == REQUESTED else place, value)


def _workqueue_values(machine: Machine, request: QuietRequest) -> RequestedValues:
    files = machine.files
    if not files.exists(MASK):
        return RequestedValues(
            unavailable=f"this kernel does not expose workqueues (/{MASK} is missing)"
        )
    cores = split_cores(files, request)
    if cores.because:
        return RequestedValues(unavailable=cores.because)
    first = REQUESTED if files.exists(REQUESTED) else MASK
    places = [first, *files.paths(f"{FOLDER}/*/cpumask")]
    return RequestedValues(
        values=dict.fromkeys(places, mask_text(cores.housekeeping)),
        notes=("work that is bound to a CPU stays there",),
    )


WORKQUEUES_KNOB: Final[Knob] = _Workqueues(
    name="workqueues", requested=_workqueue_values, same_value=same_mask
)

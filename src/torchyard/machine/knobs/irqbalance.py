"""irqbalance, the program that moves interrupts between processors: at rest while measuring.

Stopped through systemd where systemd runs it. Otherwise its process is suspended, not ended: that
can be undone without knowing how it was started.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import NotAllowed, UsageError
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.programs import run_program, why_no_program
from torchyard.machine.tasks import Task, read_task

__all__ = ["KNOB"]

RUNNING: Final = "running"
STOPPED: Final = "stopped"
GONE: Final = "gone"

_PROGRAM: Final = "irqbalance"
_LIMIT_S: Final = 30.0
_SUSPENDED_S: Final = 2.0
_UNIT: Final = re.compile(r"/([A-Za-z0-9@_.\-]+\.service)(/|$)")
_PROCESS: Final = re.compile(r"process (\d+) started (\d+)")


@dataclass(frozen=True, kw_only=True)
class _Irqbalance:
    name: str = "irqbalance"
    about: str = "the program that moves interrupts"
    why: str = (
        "It moves interrupts every ten seconds by load, also onto the cores that measure, and "
        "back to where this tune took them from. At rest, interrupts stay where they are."
    )
    profile: Profile = "cpu"
    effect: Effect = "small"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:  # noqa: ARG002
        """Its service, or its process where no service is behind it."""
        files = machine.files
        tasks = list(_tasks(files))
        if not tasks:
            why = f"{_PROGRAM} does not run here"
            if not any(files.exists(f"{folder}/{_PROGRAM}") for folder in _FOLDERS):
                why += " and is not installed"
            return KnobState(knob=self.name, unavailable=why)
        settings: list[Setting] = []
        for task in tasks:
            unit = _unit(files, task)
            if unit:
                missing = why_no_program(files, "systemctl")
            else:
                missing = "" if files.live else "processes of a copy of a machine cannot be stopped"
            if missing:
                return KnobState(knob=self.name, unavailable=missing)
            place = unit or f"process {task.number} started {task.start_ticks}"
            found = self.read(machine, place)
            settings.append(Setting(knob=self.name, place=place, found=found, wanted=STOPPED))
        return KnobState(knob=self.name, settings=tuple(settings))

    def read(self, machine: Machine, place: str) -> str:
        """Whether it runs."""
        match = _PROCESS.fullmatch(place)
        if match is None:
            units = (_unit(machine.files, task) for task in _tasks(machine.files))
            return RUNNING if place in units else STOPPED
        task = _same_task(machine.files, match)
        if task is None:
            return GONE
        return STOPPED if task.state in ("T", "t") else RUNNING

    def write(self, machine: Machine, setting: Setting) -> None:
        """Bring it to rest."""
        if setting.wanted is not None:
            self._bring_about(machine, setting.place, setting.wanted)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Let it run again."""
        if self.read(machine, setting.place) not in (setting.found, GONE):
            self._bring_about(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Equal; one that ended by itself needs nothing put back."""
        return one == other or GONE in (one, other)

    def _bring_about(self, machine: Machine, place: str, state: str) -> None:
        match = _PROCESS.fullmatch(place)
        if match is None:
            if not _UNIT.fullmatch(f"/{place}"):
                raise UsageError(f"{place!r} is no name of a service")
            verb = "start" if state == RUNNING else "stop"
            run_program(machine.files, "systemctl", verb, place, limit_s=_LIMIT_S)
            return
        if not machine.files.live:
            raise NotAllowed("processes of a copy of a machine cannot be stopped")
        self._signal(machine, match, state)

    def _signal(self, machine: Machine, match: re.Match[str], state: str) -> None:
        # By descriptor: the number may pass to another process, the descriptor cannot.
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
    """The service that systemd runs it as; empty when systemd does not."""
    if files.read("proc/1/comm").value != "systemd":
        return ""
    found = _UNIT.search(files.read(f"proc/{task.number}/cgroup").value or "")
    return found[1] if found else ""


KNOB: Final[Knob] = _Irqbalance()

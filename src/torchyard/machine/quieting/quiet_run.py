"""Process settings of a command, and quieting of the machine for one run, restored afterwards.

A command's output, input, exit code and signals pass through, as if it were run alone. A run that
changes no setting also restores what an earlier, killed process left behind, because it would
affect the measurement.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self, cast

from torchyard.core.study import Study
from torchyard.errors import TorchyardError, UsageError
from torchyard.machine.gpu.library import open_gpu_libraries
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.cores import join_setting
from torchyard.machine.knobs.process_knobs import ProcessKnob, ProcessSetting
from torchyard.machine.model import (
    PROFILE_CHOICES,
    AppliedSettings,
    QuietRequest,
    Restored,
    SettingChange,
)
from torchyard.machine.quieting.apply_settings import QuietSession, chosen_knobs, needs_gpus
from torchyard.machine.quieting.restoring import Recovery, recover
from torchyard.machine.system.file_tree import FileTree

_ISOLATION = "isolation"


def process_settings(
    machine: Machine,
    request: QuietRequest,
    *,
    applied: AppliedSettings | None = None,
    knobs: Mapping[str, Knob] = KNOBS,
) -> list[tuple[str, ProcessSetting]]:
    """Return (knob, setting) of every chosen knob of reach "process" that is available here.

    If cores were isolated, joining their cpuset comes first: a process outside cannot be pinned to
    them.
    """
    settings: list[tuple[str, ProcessSetting]] = []
    if applied is not None and any(item.setting.knob == _ISOLATION for item in applied.written):
        settings.append((_ISOLATION, join_setting(machine)))
    names = chosen_knobs(request, reaches=("process",), knobs=knobs)
    settings += [
        (name, cast("ProcessKnob", knobs[name]).prefix(machine, request)) for name in names
    ]
    return [(name, setting) for name, setting in settings if not setting.unavailable]


def apply_here(settings: Sequence[tuple[str, ProcessSetting]]) -> list[tuple[str, str]]:
    """Apply settings to this process and its future children; return (knob, reason) of refusals.

    Environment variables are not set.
    """
    refused: list[tuple[str, str]] = []
    for name, setting in settings:
        try:
            setting.apply()
        except OSError as error:
            refused.append((name, error.strerror or str(error)))
    return refused


@contextmanager
def own_priority_and_cores() -> Iterator[None]:
    """Restore priority and affinity of this process at the end of the block.

    Must end after isolated cores are released: until then the kernel accepts no other affinity.
    """
    nice, cpus = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    try:
        yield
    finally:
        with suppress(OSError):  # a permission that was lost
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        with suppress(OSError):  # CPUs that went offline
            os.sched_setaffinity(0, cpus)


_FORWARDED: Final = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)
_POLL_S: Final = 0.5
_SENT_BY_KERNEL: Final = 0x80
"""SI_KERNEL: such as Ctrl-C, which the terminal sends to the command as well."""


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """Exit code of a command, and the settings that were refused for it."""

    exit_code: int
    """As in a shell: 128 plus the signal number if a signal ended it."""
    refused: tuple[tuple[str, str], ...] = ()
    """(knob, reason)"""


def check_command(command: Sequence[str]) -> str:
    """Return the program that will run; raises UsageError before any setting is changed."""
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(
            f"command not found: {command[0]!r}",
            hint="use its full path, or add its directory to PATH (sudo uses another PATH)",
        )
    return program


def run_command(
    command: Sequence[str], settings: Sequence[tuple[str, ProcessSetting]]
) -> CommandEnd:
    """Run a command to its end with the settings; a refused setting is skipped."""
    check_command(command)
    ctypes.CDLL(None)  # loaded before the fork, where settings may need it
    variables = {name: value for _, setting in settings for name, value in setting.variables}
    read_fd, write_fd = os.pipe()

    def prepare() -> None:
        for name, setting in settings:
            try:
                setting.apply()
            except OSError as error:
                os.write(write_fd, f"{name}\t{error.strerror or error}\n".encode())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # Blocked before the command exists: each signal is then read below, and none is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGCHLD))
    try:
        try:
            # Between fork and exec, because process settings cannot be made from outside.
            # Python warns of this for programs with threads; there are none here.
            process = subprocess.Popen(
                list(command),
                preexec_fn=prepare,  # noqa: PLW1509
                env={**variables, **os.environ},
            )
        except OSError as error:
            raise UsageError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
        finally:
            os.close(write_fd)
        with os.fdopen(read_fd, encoding="utf-8", errors="replace") as pipe:
            refusals = [line.rstrip("\n").partition("\t") for line in pipe]
        code = _wait(process)
    finally:
        while signal.sigtimedwait((*_FORWARDED, signal.SIGCHLD), 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    refused = tuple((name, reason) for name, _, reason in refusals)
    return CommandEnd(exit_code=128 - code if code < 0 else code, refused=refused)


def shell_line(
    settings: Sequence[tuple[str, ProcessSetting]], command: Sequence[str] = ("COMMAND",)
) -> str:
    """Return a shell command that runs `command` with the same settings."""
    variables = [f"{name}={value}" for _, item in settings for name, value in item.variables]
    words = [word for _, item in settings for word in item.words]
    env = ["env", *variables] if variables else []
    return shlex.join([*env, *words, *command])


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        code = process.poll()
        if code is not None:
            return code
        # With a time limit, because another thread may take SIGCHLD.
        info = signal.sigtimedwait((*_FORWARDED, signal.SIGCHLD), _POLL_S)
        if info is None or info.si_signo == signal.SIGCHLD or info.si_code == _SENT_BY_KERNEL:
            continue
        process.send_signal(info.si_signo)


_RESTORE = "`sudo torchyard machine restore`"


def request_for(profile: str, study: Study) -> QuietRequest:
    """Return the request of `--tune-profile`; `auto` selects by the devices of the study."""
    cpu_only = all(workload.device == "cpu" for workload in study.workloads)
    name = ("cpu" if cpu_only else "all") if profile == "auto" else profile
    return QuietRequest(profiles=PROFILE_CHOICES[name])


class QuietMachine:
    """Quiets the machine around a run. Without a request, only restores an interrupted session."""

    def __init__(self, request: QuietRequest | None, *, files: FileTree | None = None) -> None:
        self.before: list[str] = []
        """Notes for the user before the run."""
        self.after: list[str] = []
        """Notes for the user after it: values not restored, or changed by other programs."""
        self.tuned: AppliedSettings | None = None
        self.is_back = True
        """Whether everything is restored."""
        self._request = request
        self._files = files or FileTree()
        self._stack = ExitStack()
        self._session: QuietSession | None = None

    def __enter__(self) -> Self:
        machine = Machine(files=self._files)
        recovery = self._recovered(machine)
        if recovery is not None and recovery.restored is None:
            self.before.append(
                f"this machine still has the settings of a killed session ({recovery.who}): "
                f"restore it with {_RESTORE}"
            )
        elif recovery is not None and recovery.restored is not None:
            self.before.append(f"a session was killed ({recovery.who}): its settings were restored")
            self.before += _restore_notes(recovery.restored)
        if self._request is None:
            return self
        with ExitStack() as stack:
            if needs_gpus(self._request):
                libraries = stack.enter_context(open_gpu_libraries(self._files))
                machine = Machine(files=self._files, gpus=libraries)
            stack.enter_context(own_priority_and_cores())
            session = QuietSession(machine, self._request)
            stack.enter_context(session)
            # Workers are started by this process and inherit its affinity and priority.
            settings = process_settings(machine, self._request, applied=session.applied)
            refused = apply_here(settings)
            self._stack = stack.pop_all()
        self.before += [f"not quieted: {name}: {reason}" for name, reason in refused]
        self._session, self.tuned = session, session.applied
        self.before += [
            f"not quieted: {change.setting.knob} ({change.setting.where}): {change.reason}"
            for change in session.applied.refused
        ]
        return self

    def _recovered(self, machine: Machine) -> Recovery | None:
        try:
            return recover(machine)
        except TorchyardError as error:
            if self._request is not None:
                raise
            # A run that changes nothing continues, with a warning.
            self.before.append(
                f"an earlier session may not be restored: {error.what} ({error.hint})"
            )
            return None

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        finally:
            restored = self._session.restored if self._session is not None else None
            if restored is not None:
                self.is_back = restored.complete
                self.after += _restore_notes(restored)


def quieting_facts(applied: AppliedSettings) -> dict[str, dict[str, str]]:
    """Return the applied settings as facts of a run: outcome -> knob -> text."""
    facts: dict[str, dict[str, str]] = {"written": {}, "refused": {}, "unavailable": {}}
    for state in applied.knobs:
        if state.unavailable:
            facts["unavailable"][state.knob] = state.unavailable
        for outcome in ("written", "refused"):
            changes = [change for change in applied.of_knob(state.knob) if change.state == outcome]
            if changes:
                facts[outcome][state.knob] = "; ".join(dict.fromkeys(map(_change_text, changes)))
    return {outcome: knobs for outcome, knobs in facts.items() if knobs}


def _change_text(change: SettingChange) -> str:
    setting = change.setting
    text = f"{setting.place.rpartition('/')[2]}: {setting.found} -> {setting.wanted}"
    return f"{text} ({change.reason})" if change.reason else text


def _restore_notes(restored: Restored) -> list[str]:
    lines = [
        f"{item.setting.where} could not be restored to {item.setting.found!r}: {item.reason}; "
        f"try {_RESTORE}"
        for item in restored.missing
    ]
    lines += [
        f"another program changed {item.setting.where} to {item.meanwhile!r} meanwhile"
        for item in restored.settings
        if item.meanwhile and not restored.rebooted
    ]
    return lines

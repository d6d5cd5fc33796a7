"""Process settings: apply them to this process, or to a command that is run with them.

A command's output, input, exit code and signals pass through, as if it were run alone.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

from torchyard.errors import UsageError
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.core_isolation import join_setting
from torchyard.machine.knobs.process_knobs import ProcessKnob, ProcessSetting
from torchyard.machine.model import AppliedSettings, QuietRequest
from torchyard.machine.quieting.apply_settings import chosen_knobs

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
                env=_environment(settings),
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


def _environment(settings: Sequence[tuple[str, ProcessSetting]]) -> dict[str, str]:
    variables = {name: value for _, setting in settings for name, value in setting.variables}
    return {**variables, **os.environ}


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

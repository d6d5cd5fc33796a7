"""Settings of one process: apply them to this process, or to a command that is run with them.

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
from torchyard.machine.knobs.core_isolation import joining
from torchyard.machine.knobs.process_knobs import ProcessKnob, ProcessSetting
from torchyard.machine.model import Tuned, Wish
from torchyard.machine.quieting.apply_settings import chosen_knobs

_ISOLATION = "isolation"


def process_settings(
    machine: Machine, wish: Wish, *, tuned: Tuned | None = None, knobs: Mapping[str, Knob] = KNOBS
) -> list[tuple[str, ProcessSetting]]:
    """(knob, setting) of every chosen knob of reach "process" that can do something here.

    Where the tune has set cores apart, joining them comes first: nobody may be pinned to them
    from outside.
    """
    found: list[tuple[str, ProcessSetting]] = []
    if tuned is not None and any(item.setting.knob == _ISOLATION for item in tuned.written):
        found.append((_ISOLATION, joining(machine)))
    names = chosen_knobs(wish, reaches=("process",), knobs=knobs)
    found += [(name, cast("ProcessKnob", knobs[name]).prefix(machine, wish)) for name in names]
    return [(name, setting) for name, setting in found if not setting.unavailable]


def apply_here(settings: Sequence[tuple[str, ProcessSetting]]) -> list[tuple[str, str]]:
    """Apply settings to this process, which its children inherit; (knob, reason) of those refused.

    Variables are not set.
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
    """Priority and processors of this process are as before after the block.

    To be left after cores are given back: until then the kernel does not take others.
    """
    nice, cpus = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    try:
        yield
    finally:
        with suppress(OSError):  # a right that is gone
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        with suppress(OSError):  # processors that are gone
            os.sched_setaffinity(0, cpus)


_PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)
_LOOK_AGAIN_S: Final = 0.5
_SENT_BY_KERNEL: Final = 0x80
"""SI_KERNEL: Ctrl-C and the like, which the terminal sends to the command as well."""


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """How a command ended, and which of its settings were refused."""

    exit_code: int
    """As a shell says it: 128 and the number of the signal that ended it."""
    refused: tuple[tuple[str, str], ...] = ()
    """(knob, reason)"""


def check_command(command: Sequence[str]) -> str:
    """The program that will run; raises UsageError before anything is tuned for it."""
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(
            f"there is no program {command[0]!r} to run",
            hint="give its path, or put its folder on the PATH (sudo has a PATH of its own)",
        )
    return found


def run_command(
    command: Sequence[str], settings: Sequence[tuple[str, ProcessSetting]]
) -> CommandEnd:
    """Run it to its end. `settings` are (knob, setting); one that is refused is left out."""
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

    # Blocked before the command exists: from then on each signal is read below, and none is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    try:
        try:
            # Between fork and exec, because settings of a process cannot be made from outside.
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
            said = [line.rstrip("\n").partition("\t") for line in pipe]
        code = _wait(process)
    finally:
        while signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    refused = tuple((name, reason) for name, _, reason in said)
    return CommandEnd(exit_code=128 - code if code < 0 else code, refused=refused)


def shell_line(
    settings: Sequence[tuple[str, ProcessSetting]], command: Sequence[str] = ("COMMAND",)
) -> str:
    """What to type to get the same settings from a shell."""
    variables = [f"{name}={value}" for _, item in settings for name, value in item.variables]
    words = [word for _, item in settings for word in item.words]
    env = ["env", *variables] if variables else []
    return shlex.join([*env, *words, *command])


def _environment(settings: Sequence[tuple[str, ProcessSetting]]) -> dict[str, str]:
    wanted = {name: value for _, setting in settings for name, value in setting.variables}
    return {**wanted, **os.environ}


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        code = process.poll()
        if code is not None:
            return code
        # A thread that somebody else started may take SIGCHLD away: so not for ever.
        info = signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), _LOOK_AGAIN_S)
        if info is None or info.si_signo == signal.SIGCHLD or info.si_code == _SENT_BY_KERNEL:
            continue
        process.send_signal(info.si_signo)

"""Running somebody's command with settings of its own process, as if it were run alone.

Output, input, exit code and signals pass through. Knows nothing of tunes.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.errors import UsageError
from torchyard.machine.process_knob import ProcessSetting

__all__ = ["CommandEnd", "check_command", "run_command", "shell_line"]

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

"""The sandbox of a build command: a root folder, no network, no leftover processes.

Writes the command line of `sandbox_program.py`, which makes the sandbox in a process of its own;
starts nothing but a probe of what the system allows. Knows nothing of recipes, plans and steps.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torchyard
from torchyard.errors import NotAllowed
from torchyard.process.tree import start_ticks

__all__ = ["Abilities", "Sandbox", "abilities", "root_python_script", "wanted_names"]

_PROGRAM: Final = str(Path(__file__).resolve().with_name("sandbox_program.py"))
_PACKAGE: Final = str(Path(torchyard.__file__).resolve().parent)
_PROBE_LIMIT_S: Final = 30.0

_OF_THE_LOADER: Final = ("LD_", "GLIBC_TUNABLES")
"""Beginnings of the names of variables that would change, or break, the program's interpreter."""

_SWITCHES: Final = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=1000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Files that forbid user namespaces, the text that does, and the setting that allows them."""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What the system lets this user do."""

    can_mount: bool
    """Enter a root folder with the machine's folders in it."""
    can_unshare_network: bool
    can_separate_processes: bool
    """What a command leaves running ends with it, whatever happens."""
    why_not: str = ""
    """The refusal in words, empty when all is allowed."""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a command may see and reach."""

    root: str = ""
    """Folder that is the command's /; empty means this machine."""
    network: bool = True
    writable: tuple[str, ...] = ()
    """Folders to show in the root although they lie in system folders, such as below /var."""
    wanted_file: str = ""
    """Where the names go that the command asked the missing network for, one on each line."""

    def command(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        variables: Mapping[str, str],
        ends_with_yard: bool = True,
    ) -> tuple[list[str], dict[str, str]]:
        """What to start instead of `argv`, and its whole environment.

        Without root and with network it is `argv` itself, to be started in `folder`. A network
        that cannot be cut is left: see `abilities`. `ends_with_yard=False` is for lines that are
        kept, to be started by hand when this process is long gone.
        """
        may = abilities() if self.root or not self.network else None
        if self.root and may and not may.can_mount:
            raise NotAllowed(
                f"the root folder {self.root} cannot be used by this user",
                why=may.why_not,
                hint=may.hint,
            )
        cut = not self.network and may is not None and may.can_unshare_network
        if may is None or not (self.root or cut):
            return list(argv), dict(variables)
        options = ["--folder", folder]
        if ends_with_yard:
            pid = os.getpid()
            options += ["--parent", f"{pid}:{start_ticks(pid)}"]
        if self.root:
            options += ["--root", self.root]
            for shown in self.writable:
                options += ["--show", shown]
        if cut:
            options += ["--no-network"]
            options += ["--wanted-file", self.wanted_file] if self.wanted_file else []
        if may.can_separate_processes:
            options += ["--own-processes"]
        environment = {}
        for name, value in variables.items():
            if name.startswith(_OF_THE_LOADER):
                options += ["--set", f"{name}={value}"]
            else:
                environment[name] = value
        return [*_start(), *options, "--", *argv], environment


def _start() -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", _PROGRAM]


@cache
def abilities() -> Abilities:
    """Asked of the system once, by making sandboxes for no command."""
    refusals: list[str] = []
    for network in (("--no-network",), ()):
        for processes in (("--own-processes",), ()):
            refusal = _refusal((*network, *processes))
            if not refusal:
                return Abilities(
                    can_mount=True,
                    can_unshare_network=bool(network),
                    can_separate_processes=bool(processes),
                    why_not=refusals[0] if refusals else "",
                    hint=_hint() if refusals else "",
                )
            refusals.append(refusal)
    return Abilities(
        can_mount=False,
        can_unshare_network=False,
        can_separate_processes=False,
        why_not=refusals[-1],
        hint=_hint(),
    )


def _refusal(options: tuple[str, ...]) -> str:
    """Why no such sandbox can be made; empty when it can."""
    try:
        made = subprocess.run(
            [*_start(), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = made.stderr.decode(errors="replace").strip().removeprefix("torchyard sandbox: ")
    return "" if made.returncode == 0 else said or f"the probe ended with {made.returncode}"


def _hint() -> str:
    for path, forbids, setting in _SWITCHES:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text == forbids:
            return f"as root: sysctl -w {setting}"
    return (
        "run as root, or allow user namespaces; in a container, start it with "
        "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    )


def wanted_names(path: str) -> tuple[str, ...]:
    """The names in a `wanted_file`, each once, in the order they were asked for."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    return tuple(dict.fromkeys(line for line in text.split("\n") if line))


def root_python_script(
    *, root: str, python: str, variables: Mapping[str, str], shown: Sequence[str] = ()
) -> str:
    """A shell script that is, for whoever starts it, the interpreter `python` of the root folder.

    The process becomes that interpreter: number, parent, open files, signals and exit code are its
    own, so that it can be the interpreter of a measuring target. `variables` win over inherited
    ones; `shown` are folders that it needs although they may lie in system folders.
    """
    shows = [word for folder in (_PACKAGE, *shown) for word in ("--show", folder)]
    start = shlex.join([*_start(), "--become", "--root", root, *shows])
    settings = shlex.join(
        [part for pair in variables.items() for part in ("--set", "=".join(pair))]
    )
    return f"""#!/bin/sh
# {shlex.quote(python)} of the root folder {shlex.quote(root)}, for programs outside of it.
# The loader's variables are meant for that interpreter, not for the one that makes the root.
set -- {settings} -- {shlex.quote(python)} "$@"
for name in LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT GLIBC_TUNABLES; do
    eval "value=\\${{$name-}}"
    if [ -n "$value" ]; then
        set -- --set "$name=$value" "$@"
        unset "$name"
    fi
done
exec {start} --folder-if-there "$PWD" "$@"
"""

"""The sandbox of a build command: a root folder, no network, no leftover processes.

Builds the command line of `sandbox_program.py`, which creates the sandbox in its own process. The
only process started here is a probe of what the system allows. Independent of recipes and plans.
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
from torchyard.process.owner import start_ticks
from torchyard.process.programs import capture

_PROGRAM: Final = str(Path(__file__).resolve().with_name("sandbox_program.py"))
_PACKAGE: Final = str(Path(torchyard.__file__).resolve().parent)
_PROBE_LIMIT_S: Final = 30.0

_LOADER_PREFIXES: Final = ("LD_", "GLIBC_TUNABLES")
"""Name prefixes of variables that could break the interpreter of sandbox_program.py."""

_NAMESPACE_SETTINGS: Final = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=1000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""(file, content that forbids user namespaces, sysctl setting that allows them)."""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Sandbox features that the system allows this user."""

    can_mount: bool
    """Enter a root folder with folders of the machine mounted in it."""
    can_unshare_network: bool
    can_separate_processes: bool
    """Background processes of a command always end with it."""
    why_not: str = ""
    """Reason why a feature is missing; empty if all are allowed."""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """Restrictions of a command: root folder and network access."""

    root: str = ""
    """Root folder of the command; empty means the root of this machine."""
    network: bool = True
    writable: tuple[str, ...] = ()
    """Folders to mount in the root although they are below system folders such as /var."""
    requested_hosts_file: str = ""
    """File for the host names that the command tried to resolve without network, one per line."""
    supervised: bool = False
    """End all processes of the command with it, even if nothing else is restricted."""

    def command(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        variables: Mapping[str, str],
        ends_with_controller: bool = True,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line to start instead of `argv`, and its complete environment.

        Without any restriction this is `argv` itself, to be started in `folder`. The network
        stays available where it cannot be disabled, see `abilities`. `ends_with_controller=False` is for
        scripts that are started later, after this process has ended.
        """
        if not (self.root or self.supervised) and self.network:
            return list(argv), dict(variables)
        allowed = abilities()
        if self.root and not allowed.can_mount:
            raise NotAllowed(
                f"this user cannot enter the root folder {self.root}",
                why=allowed.why_not,
                hint=allowed.hint,
            )
        offline = not self.network and allowed.can_unshare_network
        if not (self.root or offline or self.supervised):
            return list(argv), dict(variables)
        options = ["--folder", folder]
        if ends_with_controller:
            pid = os.getpid()
            options += ["--parent", f"{pid}:{start_ticks(pid)}"]
        if self.root:
            options += ["--root", self.root]
            for shown in self.writable:
                options += ["--show", shown]
        if offline:
            options += ["--no-network"]
            options += (
                ["--wanted-file", self.requested_hosts_file] if self.requested_hosts_file else []
            )
        # In the user namespace of an ordinary user, files of root belong to nobody, which ssh
        # refuses: with network, the supervisor ends the processes instead.
        if allowed.can_separate_processes and (self.root or offline or os.geteuid() == 0):
            options += ["--own-processes"]
        environment = {}
        for name, value in variables.items():
            if name.startswith(_LOADER_PREFIXES):
                options += ["--set", f"{name}={value}"]
            else:
                environment[name] = value
        return [*_program_command(), *options, "--", *argv], environment


def _program_command() -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", _PROGRAM]


@cache
def abilities() -> Abilities:
    """Find out what the system allows by creating sandboxes without a command; cached."""
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
    """Return the reason why a sandbox with these options cannot be created; empty if it can."""
    try:
        completed = capture([*_program_command(), *options], variables={}, limit_s=_PROBE_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if completed.returncode == 0:
        return ""
    message = completed.stderr.strip().removeprefix("torchyard sandbox: ")
    return message or f"the probe exited with {completed.returncode}"


def _hint() -> str:
    for path, forbids, setting in _NAMESPACE_SETTINGS:
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


def requested_hosts(path: str) -> tuple[str, ...]:
    """Return the host names in a `requested_hosts_file`, without duplicates, in order."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    return tuple(dict.fromkeys(line for line in text.split("\n") if line))


def root_python_script(
    *, root: str, python: str, variables: Mapping[str, str], shown: Sequence[str] = ()
) -> str:
    """Return a shell script that starts the interpreter `python` of the root folder.

    The process becomes that interpreter: process id, parent, open files, signals and exit code are
    preserved, so that the script can be the interpreter of a target. `variables` override inherited
    ones; `shown` are folders to mount although they may be below system folders.
    """
    shows = [word for folder in (_PACKAGE, *shown) for word in ("--show", folder)]
    start = shlex.join([*_program_command(), "--become", "--root", root, *shows])
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

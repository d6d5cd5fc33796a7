"""What `sandbox_program` was asked to do, and how a process becomes the command.

Standard library only, any Python from 3.8; once the root is entered nothing may be imported.
"""
# ruff: noqa: PTH112, PTH118
# Importing pathlib takes 10 ms, longer than all that is done with paths here.

from __future__ import annotations

import errno
import os
import signal

from torchyard.build import sandbox_mounts as mounts
from torchyard.build.sandbox_mounts import Refused

TYPE_CHECKING = False  # importing typing takes 7 ms
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["COULD_NOT_MAKE", "Order", "become", "complain", "execute"]

COULD_NOT_MAKE = 125
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


class Order:
    """What the arguments ask for."""

    def __init__(self, arguments: list[str]) -> None:
        """Read the arguments up to `--`; what follows is the command."""
        self.root = self.folder = self.wanted_file = self.parent = ""
        self.no_network = self.own_processes = self.become = self.folder_must_exist = False
        self.show: list[str] = []
        self.variables: dict[bytes, bytes] = {}
        left = list(arguments)
        while left and left[0] != "--":
            name = left.pop(0)
            if name in ("--no-network", "--own-processes", "--become"):
                setattr(self, name[2:].replace("-", "_"), True)
                continue
            if not left:
                raise Refused(f"read the arguments: {name} has no value")
            value = left.pop(0)
            if name in ("--root", "--wanted-file", "--parent"):
                setattr(self, name[2:].replace("-", "_"), value)
            elif name in ("--folder", "--folder-if-there"):
                self.folder, self.folder_must_exist = value, name == "--folder"
            elif name == "--show":
                self.show.append(value)
            elif name == "--set":
                variable, _, content = os.fsencode(value).partition(b"=")
                self.variables[variable] = content
            else:
                raise Refused(f"read the arguments: {name} is not known")
        self.command = left[1:]

    def environment(self) -> dict[bytes, bytes]:
        """Of the command."""
        given = {**os.environb, **self.variables}
        if not self.no_network:
            return given
        from torchyard.build.sandbox_names import without_proxies

        return without_proxies(given)


def complain(text: str) -> None:
    """Say on stderr why there is no sandbox, or no command."""
    os.write(2, b"torchyard sandbox: " + os.fsencode(text) + b"\n")


def become(order: Order) -> NoReturn:
    """Keep the process: its number, parent, open files and who may signal it stay the same."""
    parent, death_signal = os.getppid(), mounts.parent_death_signal()
    environment = order.environment()
    shown = mounts.plan_root(order.show) if order.root else []
    mounts.enter_namespaces(0, as_root=bool(order.root))
    # Linux forgets the request when the process gets the rights of a user namespace.
    if death_signal:
        mounts.die_with_parent(death_signal)
    if os.getppid() != parent:  # gone in between
        os._exit(COULD_NOT_MAKE)
    if order.root:
        mounts.enter_root(order.root, shown, fresh_proc=False)
    execute(order, environment)


def execute(order: Order, environment: dict[bytes, bytes]) -> NoReturn:
    """Become the command, or end as a shell does that cannot start it."""
    program, code = order.command[0], _NOT_FOUND
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    try:
        if order.folder and (order.folder_must_exist or os.path.isdir(order.folder)):
            os.chdir(order.folder)
        elif order.root:
            os.chdir("/")
    except OSError as error:
        complain(f"cannot enter the folder {order.folder}: {error.strerror}")
        os._exit(COULD_NOT_MAKE)
    folders = [b""]
    if "/" not in program:
        folders = environment.get(b"PATH", os.defpath.encode()).split(b":")
    problem = os.strerror(errno.ENOENT)
    for folder in folders:
        path = os.path.join(folder, os.fsencode(program))
        try:
            os.execve(path, order.command, environment)  # noqa: S606  # no shell wanted
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                problem, code = error.strerror or "", _NOT_EXECUTABLE
    complain(f"cannot start {program}: {problem}")
    os._exit(code)

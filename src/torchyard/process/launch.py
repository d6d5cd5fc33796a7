"""What a worker is started with: interpreter, variables, preloaded libraries, arguments.

Turns a LaunchSpec into a checked command and environment. Starts nothing, and knows nothing of
what the worker will be asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torchyard.worker
from torchyard.errors import MissingTool, UsageError
from torchyard.process.libraries import find_library
from torchyard.process.markers import LAUNCH_VARIABLE, YARD_VARIABLE, yard_mark
from torchyard.process.trouble import WorkerTrouble

__all__ = ["BOOT_FILE", "LaunchSpec", "PreparedLaunch", "prepare"]

BOOT_FILE: Final = Path(torchyard.worker.__file__).resolve().parent / "boot.py"

# -s   no packages of the user's home folder: a target is what is installed in it
# -u   what a worker printed before it died is in the log
# The script's folder is taken off the path by boot.py, because -P needs Python 3.11. Not -E or -I:
# a target may need PYTHONPATH of its own (a build that runs from its source tree), and gets exactly
# what LaunchSpec.variables says, while the yard's is removed from the environment below.
_FLAGS: Final = ("-s", "-u", "-X", "faulthandler")

_OF_THE_YARD: Final = ("PYTHON", "TORCHYARD_", "LD_PRELOAD", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")
"""Beginnings of the names of variables that speak of the yard's interpreter, not the target's."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """How one worker is started."""

    name: str
    """For messages."""
    python: str
    """Interpreter of the target: a path, or a name on the PATH that the worker gets."""
    variables: tuple[tuple[str, str], ...]
    """Added to the yard's environment, from which what concerns its own interpreter is removed."""
    preload: tuple[str, ...] = ()
    """Libraries for LD_PRELOAD, before those that `variables` name."""
    randomize_addresses: bool = True
    """False asks for the same address layout in each process; see `randomizes_addresses`."""
    memory_limit_bytes: int | None = None
    start_limit_s: float = 120.0
    arguments: tuple[str, ...] = ()
    """Extra arguments of the worker."""
    working_folder: str | None = None
    stopped_between: bool = False
    """Stop it while it is not asked anything: idle threads that spin would disturb others."""


@dataclass(frozen=True, kw_only=True)
class PreparedLaunch:
    """A launch that was checked: everything execve needs except the numbers of the pipes."""

    mark: str
    python: str
    environment: Mapping[str, str]
    preload: tuple[str, ...]
    entry: Path
    arguments: tuple[str, ...]

    def command(self, read_fd: int, write_fd: int) -> list[str]:
        """The argument vector of the worker."""
        return [
            self.python,
            *_FLAGS,
            str(self.entry),
            str(read_fd),
            str(write_fd),
            *self.arguments,
        ]


def prepare(spec: LaunchSpec, *, launch_mark: str, entry: Path | None = None) -> PreparedLaunch:
    """Check what can be checked before a process exists."""
    preload = tuple(_preload_path(library, spec.name) for library in spec.preload)
    environment = _environment(spec, preload, launch_mark)
    if spec.working_folder is not None and not Path(spec.working_folder).is_dir():
        raise UsageError(
            f"{spec.name}: the working folder {spec.working_folder} is not a folder",
            hint="make it, or name another",
        )
    for text in (*spec.arguments, *(value for _, value in spec.variables)):
        if "\0" in text:
            raise UsageError(f"{spec.name}: {text!r} holds a zero byte", hint="remove it")
    return PreparedLaunch(
        mark=launch_mark,
        python=_find_python(spec, environment),
        environment=environment,
        preload=preload,
        entry=entry or BOOT_FILE,
        arguments=spec.arguments,
    )


def _environment(spec: LaunchSpec, preload: tuple[str, ...], mark: str) -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_YARD)
    }
    for name, value in spec.variables:
        if not name or "=" in name or "\0" in name:
            raise UsageError(
                f"{spec.name}: {name!r} cannot be the name of a variable",
                hint="write variables as NAME = value",
            )
        environment[name] = value
    if preload:
        before = environment.get("LD_PRELOAD")
        environment["LD_PRELOAD"] = ":".join((*preload, *([before] if before else [])))
    environment[LAUNCH_VARIABLE] = mark
    environment[YARD_VARIABLE] = yard_mark()
    return environment


def _preload_path(library: str, name: str) -> str:
    """The library's absolute path. The loader would skip a missing one and go on without it."""
    path = Path(library).absolute() if "/" in library else find_library(library)
    if path is None or not path.is_file():
        raise MissingTool(
            f"{name}: the library to preload, {library}, is not there",
            why="the system would start the worker without it, and the numbers would mislead",
            hint="install the package that has it, or give the full path of the library",
        )
    if any(mark in str(path) for mark in (":", " ", "\0")):
        raise UsageError(
            f"{name}: the library to preload, {path}, has a blank or a colon in its path",
            why="LD_PRELOAD is a list that is separated by blanks and colons",
            hint="make a link to it with another name",
        )
    return str(path)


def _find_python(spec: LaunchSpec, environment: Mapping[str, str]) -> str:
    python = spec.python
    if "/" in python:
        # Not resolved: the link's own place is what makes a virtual environment one.
        path = Path(python).expanduser().absolute()
        problem = (
            "it does not exist"
            if not path.exists()
            else "it is a folder"
            if path.is_dir()
            else "it may not be executed"
            if not os.access(path, os.X_OK)
            else ""
        )
        found = str(path)
    else:
        which = shutil.which(python, path=environment.get("PATH", os.defpath))
        problem = "" if which else "there is no such program on the PATH"
        found = which or python
    if problem:
        raise WorkerTrouble(
            f"{spec.name}: the interpreter {python!r} cannot be started: {problem}",
            kind="no-python",
            hint="give the path of a Python that has torch, such as .venv/bin/python",
        )
    return found

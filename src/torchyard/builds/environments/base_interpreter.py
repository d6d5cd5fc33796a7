"""Find programs and interpreters, and the base interpreter whose packages an environment sees.

An interpreter is started only to query its version and prefix. A base may be another build
(`build:NAME`) and run in a root folder of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from torchyard.builds import BUILD_PREFIX
from torchyard.builds.build_folders import BuildFolder, YardHome
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.plan import Variables
from torchyard.builds.record import BuildRecord, read_earlier, target_of_build
from torchyard.errors import TorchyardError, UsageError

_VERSION: Final = re.compile(r"3\.\d+")
_INTERPRETER_LIMIT_S: Final = 20.0
_QUESTION: Final = """
import importlib.util, json, sys
print(json.dumps([".".join(map(str, sys.version_info[:3])), sys.implementation.name,
                  importlib.util.find_spec("ensurepip") is not None]))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that an environment is made with."""

    path: str
    """Absolute where it was found; otherwise the bare name of what was asked for."""
    version: str = ""
    """Empty where it was not found."""
    implementation: str = ""
    has_pip: bool = False
    """Whether `python -m venv` can put a pip into the environments it makes."""


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Absolute path of a program the user or the system has, or nothing.

    The user's PATH counts here although builds do not get it: uv and conda live in home folders.
    """
    found = shutil.which(name, path=os.pathsep.join((environ.get("PATH", ""), SYSTEM_PATH)))
    return str(Path(found).absolute()) if found else ""


def find_interpreter(named: str, environ: Mapping[str, str], *, where: str) -> Interpreter:
    """The interpreter that a recipe names by version or by path; nothing named means the yard's.

    A version that is not here gives an Interpreter without a version: such a plan can be shown. A
    path that is not here is an error, because nothing could make it right.
    """
    if not named:
        return _ask(sys.executable, where)
    if _VERSION.fullmatch(named):
        if named == f"{sys.version_info.major}.{sys.version_info.minor}":
            return _ask(sys.executable, where)
        found = find_program(f"python{named}", environ)
        return _ask(found, where) if found else Interpreter(path=f"python{named}")
    if os.sep not in named:
        raise UsageError(
            f"{where}: {named!r} names no interpreter",
            hint="give a version such as 3.12, or a path such as /usr/bin/python3",
        )
    # Not resolved: the python of a virtual environment is a link, and only its name says which.
    path = Path(named).expanduser().absolute()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(
            f"{where}: {path} is not a program that can be started",
            hint="give the path of an interpreter, such as /usr/bin/python3",
        )
    return _ask(str(path), where)


@cache
def _ask(path: str, where: str) -> Interpreter:
    """What the interpreter is; about 30 ms, so once for each in a process."""
    try:
        # -I: neither the folder we are in nor the user's variables have a say in the answer.
        answer = subprocess.run(
            [path, "-I", "-S", "-c", _QUESTION],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_INTERPRETER_LIMIT_S,
            check=True,
        )
        version, implementation, has_pip = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{where}: {path} does not answer as a Python",
            why=str(error),
            hint="give the path of an interpreter of Python 3, such as /usr/bin/python3",
        ) from error
    return Interpreter(path=path, version=version, implementation=implementation, has_pip=has_pip)


_BASE_LIMIT_S: Final = 60.0
_LEVELS: Final = 3
"""An interpreter of a build is its `bin/python` or its `env/bin/python`."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """An interpreter whose packages a build sees and does not change."""

    interpreter: Interpreter
    """Its path is the one inside the root."""
    root: str = ""
    """Root folder that it runs in; empty means this machine."""
    variables: Variables = ()
    """Search paths that it needs to find its libraries and modules."""
    build: str = ""
    """Name of the build that made it; empty for one that Torchyard did not make."""
    checksum: str = ""
    """Of what that build made: what was built against another one must be built again."""


def named_base(text: str, home: YardHome) -> str:
    """The interpreter that `build:NAME` means, as a path; anything else as it is."""
    if not text.startswith(BUILD_PREFIX):
        return text
    return target_of_build(text.removeprefix(BUILD_PREFIX), home).python


def find_base(path: str, environ: Mapping[str, str], *, where: str) -> Base:
    """The base at that path; one that belongs to a finished build of ours is known as such."""
    record = _record_of(Path(path).expanduser().absolute()) if os.sep in path else None
    if record is None:
        return Base(interpreter=find_interpreter(path, environ, where=where))
    # Started as any program starts it: the script of the build enters the root, where there is one.
    asked = find_interpreter(record.python, environ, where=where)
    return Base(
        interpreter=replace(asked, path=_executable(record.python, where)),
        root=record.root,
        variables=tuple(record.variables.items()),
        build=record.name,
        checksum=_checksum(record),
    )


def root_of_base(path: str) -> str:
    """Root folder of the build that the path belongs to; empty where it has none. Starts nothing."""
    record = _record_of(Path(path))
    return record.root if record is not None else ""


def builds_below(path: str, home: YardHome) -> tuple[BuildFolder, ...]:
    """The build that an interpreter belongs to, the one below that, and so on. Starts nothing."""
    found: list[BuildFolder] = []
    while path:
        folder = _folder_of(Path(path).expanduser().absolute())
        if folder is None or folder in found:
            break
        found.append(folder)
        record = read_earlier(folder.folder)
        settings = record.recipe.settings.values() if record is not None else ()
        bases = [str(values.get("environment.base", "")) for values in settings]
        try:
            path = named_base(next(filter(None, bases), ""), home)
        except TorchyardError:  # what it stood on is gone
            break
    return tuple(found)


def _record_of(python: Path) -> BuildRecord | None:
    folder = _folder_of(python)
    record = read_earlier(folder.folder) if folder is not None else None
    return record if record is not None and record.python else None


def _folder_of(python: Path) -> BuildFolder | None:
    """Of the finished build that the interpreter belongs to."""
    folders = (BuildFolder(folder=folder) for folder in python.parents[1:_LEVELS])
    return next((folder for folder in folders if folder.record_file.is_file()), None)


def _executable(starter: str, where: str) -> str:
    """The path that the interpreter has where it runs."""
    try:
        answer = subprocess.run(
            [starter, "-I", "-S", "-c", "import sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_BASE_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{where}: {starter} does not start",
            why=str(getattr(error, "stderr", "") or error).strip(),
            hint="build it again, or name another base",
        ) from error
    return answer.stdout.strip()


def _checksum(record: BuildRecord) -> str:
    """Of its wheels: a plan that was worded anew and made the same wheels is the same base."""
    wheels = [wheel.sha256 for part in record.components for wheel in part.wheels]
    text = "\n".join(wheels) or record.plan_fingerprint
    return hashlib.sha256(text.encode()).hexdigest()

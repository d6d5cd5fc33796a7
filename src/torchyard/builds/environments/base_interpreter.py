"""Find programs and interpreters, and the base interpreter whose packages an environment uses.

An interpreter is started only to query its version and prefix. A base may be another build
(`build:NAME`), which may have its own root folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from torchyard.builds import BUILD_PREFIX
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.plan import Variables
from torchyard.builds.record import BuildRecord, read_earlier, target_of_build
from torchyard.errors import TorchyardError, UsageError
from torchyard.process.programs import capture

_VERSION: Final = re.compile(r"3\.\d+")
_INTERPRETER_LIMIT_S: Final = 20.0
_QUERY: Final = """
import importlib.util, json, sys
print(json.dumps([".".join(map(str, sys.version_info[:3])), sys.implementation.name,
                  importlib.util.find_spec("ensurepip") is not None]))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python interpreter that creates an environment."""

    path: str
    """Absolute if it was found; otherwise the requested name."""
    version: str = ""
    """Empty if it was not found."""
    implementation: str = ""
    has_pip: bool = False
    """Whether `python -m venv` can install pip (ensurepip is available)."""


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the absolute path of a program on the user's or the system's PATH; empty if missing.

    The user's PATH is searched although builds do not inherit it: uv and conda are often installed
    in the home directory.
    """
    path = shutil.which(name, path=os.pathsep.join((environ.get("PATH", ""), SYSTEM_PATH)))
    return str(Path(path).absolute()) if path else ""


def _programs(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the programs of a name on the user's and the system's PATH, and those of pyenv."""
    for folder in os.pathsep.join((environ.get("PATH", ""), SYSTEM_PATH)).split(os.pathsep):
        path = shutil.which(name, path=folder) if folder else None
        if path:
            yield str(Path(path).absolute())
        if path and Path(folder).name == "shims":
            yield from sorted(map(str, Path(folder).parent.glob(f"versions/*/bin/{name}")))


def find_interpreter(named: str, environ: Mapping[str, str], *, where: str) -> Interpreter:
    """Return the interpreter given by version or path; default: the one that runs Torchyard.

    A version that is not installed gives an Interpreter without version, so that the plan can be
    shown. A path that does not exist is an error.
    """
    if not named:
        return _query_interpreter(sys.executable, where)
    if _VERSION.fullmatch(named):
        if named == f"{sys.version_info.major}.{sys.version_info.minor}":
            return _query_interpreter(sys.executable, where)
        for program in _programs(f"python{named}", environ):
            # A shim of pyenv exists for versions that are not active, and then fails.
            with suppress(UsageError):
                return _query_interpreter(program, where)
        return Interpreter(path=f"python{named}")
    if os.sep not in named:
        raise UsageError(
            f"{where}: {named!r} is not an interpreter",
            hint="give a version such as 3.12, or a path such as /usr/bin/python3",
        )
    # Not resolved: the python of a virtual environment is a link that identifies it.
    path = Path(named).expanduser().absolute()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(
            f"{where}: {path} is not executable",
            hint="give the path of an interpreter, such as /usr/bin/python3",
        )
    return _query_interpreter(str(path), where)


@cache
def _query_interpreter(path: str, where: str) -> Interpreter:
    """Query an interpreter; takes about 30 ms, therefore cached."""
    try:
        # -I: independent of the current folder and the user's variables.
        answer = capture([path, "-I", "-S", "-c", _QUERY], limit_s=_INTERPRETER_LIMIT_S)
        answer.check_returncode()
        version, implementation, has_pip = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{where}: {path} is not a Python interpreter",
            why=str(error),
            hint="give the path of a Python 3 interpreter, such as /usr/bin/python3",
        ) from error
    return Interpreter(path=path, version=version, implementation=implementation, has_pip=has_pip)


_BASE_LIMIT_S: Final = 60.0
_LEVELS: Final = 3
"""Parent folders to search: a build has its interpreter at `bin/python` or `env/bin/python`."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """An interpreter whose packages a build uses without changing them."""

    interpreter: Interpreter
    """With its path inside the root."""
    root: str = ""
    """Root folder that it runs in; empty means the root of this machine."""
    variables: Variables = ()
    """Search paths of its libraries and modules."""
    build: str = ""
    """Name of the build it belongs to; empty if it does not belong to a build of Torchyard."""
    checksum: str = ""
    """Checksum of the results of that build; a change causes a rebuild."""


def resolve_base(text: str, home: BuildsDirectory) -> str:
    """Replace `build:NAME` by the path of that build's interpreter; return other text unchanged."""
    if not text.startswith(BUILD_PREFIX):
        return text
    return target_of_build(text.removeprefix(BUILD_PREFIX), home).python


def find_base(path: str, environ: Mapping[str, str], *, where: str) -> Base:
    """Return the base at a path, with the details of the finished build it belongs to."""
    record = _record_of(Path(path).expanduser().absolute()) if os.sep in path else None
    if record is None:
        return Base(interpreter=find_interpreter(path, environ, where=where))
    # The interpreter script of the build enters the root, if there is one.
    interpreter = find_interpreter(record.python, environ, where=where)
    return Base(
        interpreter=replace(interpreter, path=_executable(record.python, where)),
        root=record.root,
        variables=tuple(record.variables.items()),
        build=record.name,
        checksum=_checksum(record),
    )


def root_of_base(path: str) -> str:
    """Return the root folder of the build that the path belongs to; empty if there is none."""
    record = _record_of(Path(path))
    return record.root if record is not None else ""


def base_builds(path: str, home: BuildsDirectory) -> tuple[BuildFolder, ...]:
    """Return the build that an interpreter belongs to, its base build, and so on."""
    builds: list[BuildFolder] = []
    while path:
        folder = _folder_of(Path(path).expanduser().absolute())
        if folder is None or folder.folder in [build.folder for build in builds]:
            break
        builds.append(folder)
        record = read_earlier(folder.folder)
        settings = record.recipe.settings.values() if record is not None else ()
        bases = [str(values.get("environment.base", "")) for values in settings]
        try:
            path = resolve_base(next(filter(None, bases), ""), home)
        except TorchyardError:  # the base no longer exists
            break
    return tuple(builds)


def _record_of(python: Path) -> BuildRecord | None:
    folder = _folder_of(python)
    record = read_earlier(folder.folder) if folder is not None else None
    return record if record is not None and record.python else None


def _folder_of(python: Path) -> BuildFolder | None:
    """Return the folder of the finished build that the interpreter belongs to."""
    folders = (BuildFolder(folder=folder) for folder in python.parents[1:_LEVELS])
    return next((folder for folder in folders if folder.record_file.is_file()), None)


def _executable(starter: str, where: str) -> str:
    """Return sys.executable of the interpreter: its path inside the root."""
    try:
        query = "import sys; print(sys.executable)"
        answer = capture([starter, "-I", "-S", "-c", query], limit_s=_BASE_LIMIT_S)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{where}: {starter} does not start",
            why=str(getattr(error, "stderr", "") or error).strip(),
            hint="rebuild it, or use another base",
        ) from error
    return answer.stdout.strip()


def _checksum(record: BuildRecord) -> str:
    """Return a checksum of the wheels, so that a changed plan with equal wheels is the same base."""
    wheels = [wheel.sha256 for part in record.components for wheel in part.wheels]
    text = "\n".join(wheels) or record.plan_fingerprint
    return hashlib.sha256(text.encode()).hexdigest()

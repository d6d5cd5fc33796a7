"""The base of an environment: another interpreter whose packages it sees, and where that one runs.

A base is an interpreter and the root folder it lives in. One of this machine has no root; one that
Torchyard built may have: it starts only in there, and so does all that is built against it. Knows
nothing of plans; looks at the record that a build leaves.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.build import BUILD_PREFIX
from torchyard.build.environments.programs import Interpreter, find_interpreter
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.record import read_earlier, target_of_build
from torchyard.core.build_plan import Variables
from torchyard.core.build_record import BuildRecord
from torchyard.errors import TorchyardError, UsageError

__all__ = ["Base", "builds_below", "find_base", "named_base", "root_of_base"]

_ANSWER_LIMIT_S: Final = 60.0
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
            timeout=_ANSWER_LIMIT_S,
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

"""The record of a finished build on disk: writing, reading, listing, and finding a build by name.

What goes into a record is gathered elsewhere (`recording`); here it is only kept and found again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.build.layout import BuildFolder, YardHome, check_build_name
from torchyard.core.build_record import RECORD_VERSION, BuildRecord
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.core.variant import Target
from torchyard.errors import MissingTool, ResultsDamaged, UsageError
from torchyard.results.durable import replace_file, to_json_text, write_failed

__all__ = [
    "BuildEntry",
    "find_build",
    "freeze_text",
    "list_builds",
    "read_earlier",
    "read_record",
    "target_of_build",
    "write_record",
]

_MEND: Final = "put the file back from a copy, or build again: it is written anew"


@dataclass(frozen=True, kw_only=True)
class BuildEntry:
    """A build as it lies on disk."""

    name: str
    folder: Path
    record: BuildRecord | None
    """None while it is not finished, or when the record cannot be read."""
    trouble: str = ""
    """Why the record cannot be read."""


def write_record(folder: Path, record: BuildRecord) -> Path:
    """Put the record into the build's folder: the old one or the new one, never half of one."""
    path = BuildFolder(folder=folder).record_file
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path, error, kept="what is there") from error
    replace_file(path, to_json_text(encode(record), indent=1) + "\n")
    return path


def read_record(folder: Path) -> BuildRecord:
    """The record in that folder; ResultsDamaged names the file when it is none of ours."""
    path = BuildFolder(folder=folder).record_file
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} holds no finished build",
            why=f"{path} is missing",
            hint="torchyard build list shows the builds there are",
        ) from error
    except OSError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise ResultsDamaged(
            f"{path}, line {line}: not JSON", why=str(error), hint=_MEND
        ) from error
    version = content.get("record_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultsDamaged(f"{path}: not the record of a build", hint=_MEND)
    if version > RECORD_VERSION:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard ({content.get('torchyard') or 'unknown'})",
            why=f"its version is {version}; this Torchyard reads up to {RECORD_VERSION}",
            hint="update Torchyard to read it",
        )
    try:
        return decode(BuildRecord, content, where="", strict=False)
    except UsageError as error:
        raise ResultsDamaged(
            f"{path}: not the record of a build", why=error.what, hint=_MEND
        ) from error


def read_earlier(folder: Path) -> BuildRecord | None:
    """The record that a new one replaces; None when there is none that can be read."""
    try:
        return read_record(folder)
    except (UsageError, ResultsDamaged):
        return None


def list_builds(home: YardHome) -> tuple[BuildEntry, ...]:
    """Every build of the home, the finished ones and those that are not, by name."""
    try:
        folders = sorted(path for path in home.builds.iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(_entry(folder) for folder in folders if not folder.name.startswith("."))


def find_build(name_or_path: str, home: YardHome) -> BuildEntry:
    """The finished build of that name in the home, or in that folder.

    A name never contains a slash; `./name` is a folder.
    """
    if os.sep in name_or_path or name_or_path in (".", ".."):
        folder = Path(name_or_path).expanduser().absolute()
    else:
        check_build_name(name_or_path, where="the build's name")
        folder = home.builds / name_or_path
        if not folder.is_dir():
            names = [entry.name for entry in list_builds(home)]
            raise UsageError(
                f"there is no build {name_or_path!r} in {home.builds}",
                hint=nearest_hint(name_or_path, names, what="build"),
            )
    return BuildEntry(name=folder.name, folder=folder, record=read_record(folder))


def target_of_build(name_or_path: str, home: YardHome | None = None) -> Target:
    """The target that a finished build is: its interpreter, with what the activation sets."""
    entry = find_build(name_or_path, home or YardHome.default())
    record = entry.record
    if record is None or not record.python:
        raise UsageError(
            f"the build {entry.name!r} has no interpreter, so that it cannot be a target",
            why="it made libraries only",
            hint="name a build of PyTorch, or the environment that uses these libraries",
        )
    if not os.access(record.python, os.X_OK):
        raise MissingTool(
            f"the interpreter of the build {entry.name!r} is gone: {record.python}",
            why="the folder was moved or cleaned after the build",
            hint=f"torchyard build {record.recipe.name} --name {entry.name}",
        )
    return Target(name=entry.name, python=record.python, variables=tuple(record.variables.items()))


def freeze_text(record: BuildRecord) -> str:
    """The packages of the environment in pip's form."""
    lines: list[str] = []
    for package in record.packages:
        if "://" in package.origin:
            lines.append(f"{package.name} @ {package.origin}")
        elif package.origin:
            lines.append(f"{package.name}=={package.version}  # seen in {package.origin}")
        else:
            lines.append(f"{package.name}=={package.version}")
    return "".join(f"{line}\n" for line in lines)


def _entry(folder: Path) -> BuildEntry:
    try:
        return BuildEntry(name=folder.name, folder=folder, record=read_record(folder))
    except ResultsDamaged as error:
        return BuildEntry(name=folder.name, folder=folder, record=None, trouble=error.what)
    except UsageError:
        return BuildEntry(name=folder.name, folder=folder, record=None)

"""Bringing runs into a home: from an archive, a run folder, or a folder of those.

Runs are put together in a hidden folder and get their place by one rename each, so that a kill
leaves whole runs only. What is there is never written over.
"""

from __future__ import annotations

import filecmp
import hashlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.units import format_bytes
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.archive import LARGEST_BYTES, is_run_name, plain_files, unpack
from torchyard.results.bounded_read import parse_json, read_document
from torchyard.results.durable import to_json_text, write_failed
from torchyard.results.layout import RUN_FILE
from torchyard.results.owner import is_gone
from torchyard.results.run_changes import STAGING_PREFIX, sweep_leftovers

__all__ = ["Imported", "import_runs"]

Progress = Callable[[int, int], None]
_OUR_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{4}")
_MARKS: Final = ("format", "id", "state", "torchyard", "study")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What came of it."""

    runs: tuple[str, ...] = ()
    """Ids of the runs that are new here."""
    same: tuple[str, ...] = ()
    """Ids of runs that were here already, with the same content."""
    refused: tuple[tuple[str, str], ...] = ()
    """Name and reason."""


def import_runs(
    source: Path,
    home: Path,
    *,
    largest_bytes: int = LARGEST_BYTES,
    progress: Progress | None = None,
    unpacking: Progress | None = None,
) -> Imported:
    """Bring every run of the source into the home; `unpacking` is told MiB of an archive."""
    sweep_leftovers(home)
    with _staging(home) as staging:
        if source.is_dir():
            folders = _run_folders(source)
        else:
            names = unpack(source, staging, largest_bytes=largest_bytes, progress=unpacking)
            folders = [staging / name for name in names]
        if not folders:
            raise NothingToDo(
                f"there is no run in {source}",
                hint="name an archive, a run folder, or a folder that holds run folders",
            )
        new, same, refused = [], [], []
        for number, folder in enumerate(folders, start=1):
            name, why = _name_for(folder, archived=folder.parent == staging)
            if not why and _size_bytes(folder) > largest_bytes:
                why = f"it is larger than {format_bytes(largest_bytes)}; --max-size allows more"
            if why:
                refused.append((folder.name, why))
            elif (home / name).exists():
                if _alike(folder, home / name):
                    same.append(name)
                else:
                    refused.append((name, "another run with this id is here already"))
            else:
                _settle(folder, home / name, staging)
                new.append(name)
            if progress is not None:
                progress(number, len(folders))
    return Imported(runs=tuple(new), same=tuple(same), refused=tuple(refused))


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    folder = home / f"{STAGING_PREFIX}{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise write_failed(folder, error, kept="what is there") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_folders(source: Path) -> list[Path]:
    if (source / RUN_FILE).is_file():
        return [source.absolute()]
    return sorted(
        path
        for path in source.absolute().iterdir()
        if not path.is_symlink() and path.name[0] != "." and (path / RUN_FILE).is_file()
    )


def _name_for(folder: Path, *, archived: bool) -> tuple[str, str]:
    """The id that the run gets here, and why it cannot have a place.

    Runs that are going on are not put into archives: one that seems so there was killed.
    """
    try:
        text = read_document(folder / RUN_FILE)
        facts: Any = parse_json(text)
    except (OSError, ValueError):
        return "", f"its {RUN_FILE} is missing or cannot be read"
    if not isinstance(facts, dict) or not all(mark in facts for mark in _MARKS):
        return "", f"its {RUN_FILE} is not one of Torchyard's"
    owner = facts.get("owner")
    if (
        facts["state"] == "running"
        and not archived
        and not is_gone(owner if isinstance(owner, dict) else {})
    ):
        return "", "it is still going"
    if isinstance(facts["id"], str) and _OUR_ID.fullmatch(facts["id"]):
        return facts["id"], ""
    # A run in a folder of the user's own gets a name that sorts by time and is always the same.
    digits = "".join(
        letter for letter in str(facts.get("started")) if letter.isdecimal() or letter == "."
    )
    if len(digits) < 14:  # noqa: PLR2004
        return "", f"its {RUN_FILE} does not say when it was made"
    name = f"{digits[:8]}T{digits[8:18]}Z-{hashlib.sha256(text).hexdigest()[:4]}"
    return (name, "") if is_run_name(name) else ("", "its name is not one for a folder")


def _size_bytes(folder: Path) -> int:
    return sum((folder / inside).stat().st_size for inside in plain_files(folder))


def _settle(folder: Path, place: Path, staging: Path) -> None:
    try:
        if folder.parent != staging:
            copy = staging / f"copy-{secrets.token_hex(4)}"
            for inside in plain_files(folder):
                (copy / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / inside, copy / inside)
            folder = copy
        (folder / RUN_FILE).write_bytes(_with_end(folder / RUN_FILE))
        folder.rename(place)
    except OSError as error:
        raise write_failed(place, error, kept="every run that was there") from error


def _with_end(path: Path) -> bytes:
    """The file; a run that was killed says that it was, since elsewhere nobody can look."""
    text = read_document(path)
    try:
        facts = parse_json(text)
    except ValueError:
        return text
    if not isinstance(facts, dict) or facts.get("state") != "running":
        return text
    return (to_json_text({**facts, "state": "interrupted"}, indent=1) + "\n").encode("ascii")


def _alike(one: Path, other: Path) -> bool:
    """Whether the same files hold the same bytes, apart from the state of a run that was killed."""
    names = list(plain_files(one))
    if names != list(plain_files(other)):
        return False
    try:
        return all(
            _with_end(one / name) == _with_end(other / name)
            if name.name == RUN_FILE
            else filecmp.cmp(one / name, other / name, shallow=False)
            for name in names
        )
    except OSError as error:
        raise UsageError(f"{one.name} cannot be compared: {error.strerror or error}") from error

"""Import, annotate and delete runs that have ended.

A running run is rejected, because its process would overwrite any change. Imported runs (from an
archive, a run folder, or a folder of run folders) are assembled in a hidden folder and renamed one by
one, so that an interrupted import leaves only complete runs. Existing runs are never overwritten.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.units import format_bytes
from torchyard.errors import NothingToDo, ResultsDamaged, UsageError
from torchyard.files.safe_reading import parse_json, read_document
from torchyard.files.safe_writing import to_json_text, write_errors
from torchyard.machine.identity import table_of
from torchyard.process.owner import is_gone
from torchyard.results.archive import LARGEST_BYTES, is_run_name, plain_files, unpack
from torchyard.results.baselines import Baseline, list_baselines
from torchyard.results.directory import (
    REMOVED_MARK,
    REQUIRED_FACTS,
    RUN_FILE,
    remove_run_folder,
    run_facts,
    runs_home,
    used_place,
)
from torchyard.results.index.entries import full_mark
from torchyard.results.integrity import replace_facts
from torchyard.results.run_reader import read_info

STAGING_PREFIX: Final = ".import-"
"""Prefix of the hidden folders in which runs are assembled."""
_LEFTOVER_S: Final = 24 * 3600.0
"""Age after which a hidden folder counts as a leftover of a killed process."""
_NOTE_LETTERS: Final = 10_000


def check_may_delete(folder: Path) -> None:
    """Raise if the folder is not a run, the run is running, or a baseline refers to it."""
    if folder.is_symlink() or not folder.is_dir() or full_mark(folder) is None:
        raise UsageError(
            f"{folder} is not a run folder", hint="list runs with `torchyard results list`"
        )
    facts = run_facts(folder)  # of any format version; empty if they are damaged
    _check_ended(folder, facts)
    if (place := used_place(folder)) is not None:
        raise UsageError(
            f"{folder} was not deleted",
            why=f"{place} is inside it",
            hint="change to another folder first",
        )
    baselines, damaged = list_baselines()
    if damaged:
        raise ResultsDamaged(
            f"{folder.name} was not deleted",
            why=f"a baseline may refer to it, but {damaged[0].what}",
            hint="fix or delete that baseline first",
        )
    names = [baseline.name for baseline in baselines if _is_named(folder, facts, baseline)]
    if names:
        raise UsageError(
            f"{folder.name} was not deleted",
            why=f"the baseline {', '.join(names)} refers to it",
            hint=f"run `torchyard baseline delete {names[0]}` first",
        )


def delete_run(folder: Path) -> None:
    """Delete a run folder."""
    check_may_delete(folder)
    remove_run_folder(folder)


def sweep_leftovers(home: Path) -> int:
    """Remove hidden folders of interrupted deletions and imports; return how many."""
    count = 0
    try:
        folders = [path for path in home.iterdir() if path.name.startswith(".") and path.is_dir()]
    except OSError:
        return 0
    for folder in folders:
        leftover = folder.name.startswith(STAGING_PREFIX) or REMOVED_MARK in folder.name
        with suppress(OSError):
            if leftover and time.time() - folder.lstat().st_ctime > _LEFTOVER_S:
                shutil.rmtree(folder)
                count += 1
    return count


def add_note(folder: Path, text: str) -> tuple[str, ...]:
    """Add a note to the run and return all its notes."""
    note = text.strip()
    if not note or len(note) > _NOTE_LETTERS:
        raise UsageError(
            "the note is empty" if not note else "the note is too long",
            hint=f"use 1 to {_NOTE_LETTERS} characters",
        )
    with _locked(folder):
        info = read_info(folder)
        _check_ended(folder, info)
        notes = info.get("notes", [])
        if not isinstance(notes, list):
            raise ResultsDamaged(
                f"{folder / RUN_FILE}: `notes` is not a list", hint="restore the file from a backup"
            )
        info["notes"] = [*notes, note]
        replace_facts(folder, to_json_text(info, indent=1) + "\n")
    return tuple(str(one) for one in info["notes"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that concurrent notes are not lost; no-op without file locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ResultsDamaged(f"{folder} cannot be read", why=str(error.strerror)) from error
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_ended(folder: Path, facts: Mapping[str, Any]) -> None:
    owner = table_of(facts, "owner")
    if facts.get("state") == "running" and not is_gone(owner):
        host = f" on {owner['host']}" if owner.get("host") else ""
        raise UsageError(
            f"{folder.name} is still running",
            why=f"process {owner.get('pid')}{host} is writing to it",
            hint="wait until it has finished, or stop it",
        )


def _is_named(folder: Path, facts: Mapping[str, Any], baseline: Baseline) -> bool:
    elsewhere = dict(baseline.folders)
    return any(
        run in (folder.name, facts.get("id"))
        and Path(elsewhere.get(run, runs_home() / run)).resolve() == folder.resolve()
        for run in baseline.runs
    )


Progress = Callable[[int, int], None]
_OUR_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{4}")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of an import."""

    runs: tuple[str, ...] = ()
    """Ids of the imported runs."""
    same: tuple[str, ...] = ()
    """Ids of runs that were already present with the same content."""
    refused: tuple[tuple[str, str], ...] = ()
    """Name and reason of rejected runs."""


def import_runs(
    source: Path,
    home: Path,
    *,
    largest_bytes: int = LARGEST_BYTES,
    progress: Progress | None = None,
    unpacking: Progress | None = None,
) -> Imported:
    """Import all runs of the source into `home`; `unpacking` is called with MiB of an archive."""
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
                hint="give an archive, a run folder, or a folder with run folders",
            )
        new, same, refused = [], [], []
        for number, folder in enumerate(folders, start=1):
            name, why = _name_for(folder, archived=folder.parent == staging)
            sizes = ((folder / inside).stat().st_size for inside in plain_files(folder))
            if not why and sum(sizes) > largest_bytes:
                why = f"it is larger than {format_bytes(largest_bytes)} (--max-size)"
            if why:
                refused.append((folder.name, why))
            elif (home / name).exists():
                if _is_same_run(folder, home / name):
                    same.append(name)
                else:
                    refused.append((name, "a different run with this id already exists"))
            else:
                _move_into_place(folder, home / name, staging)
                new.append(name)
            if progress is not None:
                progress(number, len(folders))
    return Imported(runs=tuple(new), same=tuple(same), refused=tuple(refused))


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    folder = home / f"{STAGING_PREFIX}{secrets.token_hex(4)}"
    with write_errors(folder, kept="existing data"):
        folder.mkdir(parents=True)
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
    """Return the id of the imported run, or why it cannot be imported; one with state "running" was killed."""
    try:
        text = read_document(folder / RUN_FILE)
        facts: Any = parse_json(text)
    except (OSError, ValueError):
        return "", f"its {RUN_FILE} is missing or cannot be read"
    if not isinstance(facts, dict) or not facts.keys() >= REQUIRED_FACTS:
        return "", f"its {RUN_FILE} was not written by Torchyard"
    if facts["state"] == "running" and not archived and not is_gone(facts.get("owner")):
        return "", "it is still running"
    if isinstance(facts["id"], str) and _OUR_ID.fullmatch(facts["id"]):
        return facts["id"], ""
    # A run with a name given by the user gets a reproducible name that sorts by time.
    digits = "".join(
        letter for letter in str(facts.get("started")) if letter.isdecimal() or letter == "."
    )
    if len(digits) < 14:  # noqa: PLR2004
        return "", f"its {RUN_FILE} has no start time"
    name = f"{digits[:8]}T{digits[8:18]}Z-{hashlib.sha256(text).hexdigest()[:4]}"
    return (name, "") if is_run_name(name) else ("", "its id is not a valid folder name")


def _move_into_place(folder: Path, place: Path, staging: Path) -> None:
    with write_errors(place, kept="every run that was there"):
        if folder.parent != staging:
            copy = staging / f"copy-{secrets.token_hex(4)}"
            for inside in plain_files(folder):
                (copy / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / inside, copy / inside)
            folder = copy
        (folder / RUN_FILE).write_bytes(_with_end(folder / RUN_FILE))
        folder.rename(place)


def _with_end(path: Path) -> bytes:
    """Return `run.json`, with state "interrupted" for a killed run, whose process is unknown here."""
    text = read_document(path)
    try:
        facts = parse_json(text)
    except ValueError:
        return text
    if not isinstance(facts, dict) or facts.get("state") != "running":
        return text
    return (to_json_text({**facts, "state": "interrupted"}, indent=1) + "\n").encode("ascii")


def _is_same_run(one: Path, other: Path) -> bool:
    """Return whether both have the same files, apart from the state of a killed run."""
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

"""Import, annotate and delete runs that have ended.

A run in progress belongs to its process, which would overwrite any change; it is refused.
Imported runs (from an archive, a run folder, or a folder of run folders) are assembled in a
hidden folder and moved into place by one rename each, so that a kill leaves only complete runs.
Existing runs are never overwritten.
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
from torchyard.files.safe_reading import parse_json, read_document, read_json
from torchyard.files.safe_writing import to_json_text, write_failed
from torchyard.process.owner import is_gone
from torchyard.results.archive import LARGEST_BYTES, is_run_name, plain_files, unpack
from torchyard.results.baselines import Baseline, list_baselines
from torchyard.results.directory import RUN_FILE, runs_home
from torchyard.results.index.folders import full_mark
from torchyard.results.integrity import replace_facts
from torchyard.results.run_reader import read_info

STAGING_PREFIX: Final = ".import-"
"""Begins the name of a folder in which runs are put together before they get their place."""
_REMOVED_MARK: Final = ".removed-"
_LEFTOVER_S: Final = 24 * 3600.0
"""After this long nobody works on a hidden folder any more: its process was killed."""
_NOTE_LETTERS: Final = 10_000


def check_may_delete(folder: Path) -> None:
    """Raise when the folder is no run, the run is going on, or a baseline names it."""
    if folder.is_symlink() or not folder.is_dir() or full_mark(folder) is None:
        raise UsageError(
            f"{folder} is not a run folder", hint="`torchyard results list` lists runs"
        )
    facts = _raw_facts(folder)
    _check_ended(folder, facts)
    for place in (Path.cwd(), Path.home()):
        if place.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"{folder} is not removed", why=f"{place} is inside it", hint="leave it first"
            )
    baselines, damaged = list_baselines()
    if damaged:
        raise ResultsDamaged(
            f"{folder.name} is not removed",
            why=f"a baseline might name it, but {damaged[0].what}",
            hint="mend or remove that baseline first",
        )
    names = [baseline.name for baseline in baselines if _is_named(folder, facts, baseline)]
    if names:
        raise UsageError(
            f"{folder.name} is not removed",
            why=f"the baseline {', '.join(names)} names it",
            hint=f"`torchyard baseline delete {names[0]}` first, or save it with another run",
        )


def delete_run(folder: Path) -> None:
    """Remove a run folder with everything in it."""
    check_may_delete(folder)
    # Renamed first: a kill half-way leaves no folder that looks like a run and is none.
    doomed = folder.with_name(f".{folder.name}{_REMOVED_MARK}{secrets.token_hex(4)}")
    try:
        folder.rename(doomed)
    except OSError as error:
        raise write_failed(folder, error, kept="the run") from error
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        raise write_failed(doomed, error, kept="what is left of it") from error


def sweep_leftovers(home: Path) -> int:
    """Remove hidden folders that a kill left half removed or half brought in; how many."""
    count = 0
    try:
        folders = [path for path in home.iterdir() if path.name.startswith(".") and path.is_dir()]
    except OSError:
        return 0
    for folder in folders:
        ours = folder.name.startswith(STAGING_PREFIX) or _REMOVED_MARK in folder.name
        with suppress(OSError):
            if ours and time.time() - folder.lstat().st_ctime > _LEFTOVER_S:
                shutil.rmtree(folder)
                count += 1
    return count


def add_note(folder: Path, text: str) -> tuple[str, ...]:
    """Keep one more note with the run; all notes that it has then."""
    note = text.strip()
    if not note or len(note) > _NOTE_LETTERS:
        raise UsageError(
            "a note needs some text" if not note else "the note is too long",
            hint=f"write between 1 and {_NOTE_LETTERS} letters",
        )
    with _held(folder):
        info = read_info(folder)
        _check_ended(folder, info)
        notes = info.get("notes", [])
        if not isinstance(notes, list):
            raise ResultsDamaged(
                f"{folder / RUN_FILE}: `notes` is not a list", hint="put the file back from a copy"
            )
        info["notes"] = [*notes, note]
        replace_facts(folder, to_json_text(info, indent=1) + "\n")
    return tuple(str(kept) for kept in info["notes"])


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Two that add a note at once do so one after the other, where the file system has locks."""
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
    owner = facts.get("owner")
    owner = owner if isinstance(owner, Mapping) else {}
    if facts.get("state") == "running" and not is_gone(owner):
        host = f" on {owner['host']}" if owner.get("host") else ""
        raise UsageError(
            f"{folder.name} is still going",
            why=f"process {owner.get('pid')}{host} writes to it",
            hint="wait for it or stop it",
        )


def _raw_facts(folder: Path) -> Mapping[str, Any]:
    """What `run.json` says, of whatever version; empty when it is broken."""
    try:
        facts = read_json(folder / RUN_FILE)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _is_named(folder: Path, facts: Mapping[str, Any], baseline: Baseline) -> bool:
    elsewhere = dict(baseline.folders)
    return any(
        run in (folder.name, facts.get("id"))
        and Path(elsewhere.get(run, runs_home() / run)).resolve() == folder.resolve()
        for run in baseline.runs
    )


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

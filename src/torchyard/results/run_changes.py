"""Changes to a run that has ended: removing it, and notes about it.

A run that is going on belongs to its process, which would write over any change; it is refused.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.baselines import Baseline, list_baselines
from torchyard.results.bounded_read import read_json
from torchyard.results.checksums import replace_facts
from torchyard.results.durable import to_json_text, write_failed
from torchyard.results.index.folders import full_mark
from torchyard.results.layout import RUN_FILE
from torchyard.results.owner import is_gone
from torchyard.results.run_home import runs_home
from torchyard.results.run_reader import read_info

__all__ = ["STAGING_PREFIX", "add_note", "check_may_delete", "delete_run", "sweep_leftovers"]

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

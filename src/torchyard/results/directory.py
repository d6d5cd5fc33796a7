"""The results directory: where runs are kept, how they are named, and the layout of a run folder.

The writer and the readers of run folders agree on file names, format version and states here and
nowhere else. Functions look at names and at `run.json`, never at measurements.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from torchyard.errors import UsageError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import write_failed
from torchyard.process.owner import is_gone

State = Literal["running", "finished", "interrupted", "failed"]

FORMAT_VERSION: Final = 1
"""Raised when an older Torchyard could no longer read the folder; added keys do not raise it."""

METHOD_VERSION: Final = 2
"""Raised when times of unchanged programs would come out differently: what is timed, flushed,
warmed up or left out. Runs of different methods are not compared."""
FIRST_METHOD: Final = 1
"""Of runs that do not record it."""

STATES: Final[tuple[State, ...]] = get_args(State)
END_STATES: Final[tuple[State, ...]] = ("finished", "interrupted", "failed")

RUN_FILE: Final = "run.json"
LAUNCHES_FILE: Final = "launches.jsonl"
SAMPLES_FILE: Final = "samples.jsonl"
COMPARISONS_FILE: Final = "comparisons.jsonl"
RECORD_FILES: Final = (LAUNCHES_FILE, SAMPLES_FILE, COMPARISONS_FILE)
LOGS_FOLDER: Final = "logs"
PROGRESS_FILE: Final = "progress.jsonl"
"""Not of the record files: it is for whoever watches a run, and may be missing or cut short."""


def home_folder() -> Path:
    """The folder for everything that Torchyard keeps when no other place is named."""
    home = os.environ.get("TORCHYARD_HOME")
    if home:
        return Path(home).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    # The XDG specification says to ignore a path that is not absolute.
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "torchyard"


def runs_home() -> Path:
    """The folder that runs go to when none is named."""
    return home_folder() / "runs"


def new_run_folder(home: Path) -> Path:
    """A new empty folder whose name sorts by time: `20250102T030405.678Z-4f2a`."""
    while True:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
        folder = home / f"{moment}Z-{secrets.token_hex(2)}"
        try:
            home.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if not home.is_dir():
                raise UsageError(
                    f"{home} is not a folder", hint="set TORCHYARD_HOME to a folder for runs"
                ) from None
            continue
        except OSError as error:
            raise write_failed(folder, error, kept="what is there") from error
        # A millisecond must pass, or the next folder could sort before this one.
        time.sleep(0.001)
        return folder


def latest_run(home: Path) -> Path | None:
    """The newest run by name; None when there is none."""
    try:
        folders = sorted((path for path in home.iterdir() if path.is_dir()), reverse=True)
    except OSError:
        return None
    return next((folder for folder in folders if _our_facts(folder) is not None), None)


def replace_run(folder: Path) -> None:
    """Remove an earlier run so that a new one can take its place; never any other folder."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise _not_ours(folder, "it is not a folder")
    if not any(folder.iterdir()):
        return
    facts = _our_facts(folder)
    if facts is None:
        raise _not_ours(folder, f"it holds no {RUN_FILE} of Torchyard")
    folder = folder.resolve()
    for place in (Path.cwd(), Path.home()):
        if place.resolve().is_relative_to(folder):
            raise _not_ours(folder, f"{place} is inside it")
    if facts.get("state") == "running" and not is_gone(facts.get("owner") or {}):
        raise UsageError(
            f"{folder} holds a run that is still going",
            why=f"process {(facts.get('owner') or {}).get('pid')} writes to it",
            hint="wait for it, stop it, or name another folder",
        )
    # Renamed first: a kill half-way leaves no folder that looks like a run and is none.
    doomed = folder.with_name(f".{folder.name}.removed-{secrets.token_hex(4)}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise write_failed(folder, error, kept="what is left of it") from error


def _our_facts(folder: Path) -> Mapping[str, Any] | None:
    try:
        facts = read_json(folder / RUN_FILE)
    except (OSError, ValueError):
        return None
    marks = ("format", "id", "state", "torchyard", "study")
    return facts if isinstance(facts, dict) and all(mark in facts for mark in marks) else None


def _not_ours(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"{folder} is not removed", why=why, hint="remove it yourself, or name another folder"
    )

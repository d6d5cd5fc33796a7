"""The results directory: its location, the names of runs, and the layout of a run folder.

The writer and the readers of run folders share the file names, format version and states defined
here. Functions read names and `run.json`, never measurements.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from errno import EISDIR, ENOENT, ENOTDIR
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_reading import LARGEST_ROWS_BYTES, read_json, unreadable_error
from torchyard.files.safe_writing import replace_file, to_json_text, write_error, write_errors
from torchyard.process.owner import is_gone
from torchyard.results.plausibility import check_format

State = Literal["running", "finished", "interrupted", "failed"]

FORMAT_VERSION: Final = 1
"""Incremented when an older Torchyard can no longer read the folder, not when keys are added."""

METHOD_VERSION: Final = 2
"""Incremented when measured times of unchanged programs would differ: changes of what is timed,
flushed, warmed up or excluded. Runs of different methods are not compared."""
FIRST_METHOD: Final = 1
"""The method of runs that do not record it."""

STATES: Final[tuple[State, ...]] = get_args(State)
END_STATES: Final[tuple[State, ...]] = ("finished", "interrupted", "failed")

RUN_FILE: Final = "run.json"
LAUNCHES_FILE: Final = "launches.jsonl"
SAMPLES_FILE: Final = "samples.jsonl"
COMPARISONS_FILE: Final = "comparisons.jsonl"
RECORD_FILES: Final = (LAUNCHES_FILE, SAMPLES_FILE, COMPARISONS_FILE)
REQUIRED_FACTS: Final = frozenset({"format", "id", "state", "torchyard", "study"})
"""Keys of every `run.json`."""
LOGS_FOLDER: Final = "logs"
PROGRESS_FILE: Final = "progress.jsonl"
"""Progress for live views; not a record file, and may be missing or incomplete."""
REMOVED_MARK: Final = ".removed-"
"""Part of the name of a folder that is being deleted."""


def utc_timestamp(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return the current time in UTC: `2025-01-02T03:04:05Z`."""
    return format_utc(datetime.now(UTC), timespec)


def format_utc(moment: datetime, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Format a time in UTC as stored in files: `2025-01-02T03:04:05Z`."""
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_utc(text: str) -> datetime:
    """Parse an ISO 8601 time, in UTC if it has no time zone; raise ValueError or OverflowError."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def home_folder() -> Path:
    """Return the default folder for all data of Torchyard (`TORCHYARD_HOME`)."""
    home = os.environ.get("TORCHYARD_HOME")
    if home:
        return Path(home).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    # The XDG specification requires relative paths to be ignored.
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "torchyard"


def runs_home() -> Path:
    """Return the default parent folder of runs."""
    return home_folder() / "runs"


def new_run_folder(home: Path) -> Path:
    """Create an empty folder whose name sorts by time: `20250102T030405.678Z-4f2a`."""
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
            raise write_error(folder, error, kept="existing data") from error
        # Within the same millisecond, the next folder could sort before this one.
        time.sleep(0.001)
        return folder


def create_folder(folder: Path, *, what: str, subfolders: Sequence[str] = ()) -> Path:
    """Create the folder of a sweep or a race with subfolders; it must be new or empty."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} is not empty",
                why=f"a {what} needs a folder of its own",
                hint=f"use another folder, or resume the {what} with --resume FOLDER",
            )
        for name in subfolders:
            (folder / name).mkdir()
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder} is not a folder", hint="use another folder") from error
    except OSError as error:
        raise write_error(folder, error, kept="existing data") from error
    return folder


def latest_run(home: Path) -> Path | None:
    """Return the newest run by name; None if there is none."""
    try:
        folders = sorted((path for path in home.iterdir() if path.is_dir()), reverse=True)
    except OSError:
        return None
    return next((folder for folder in folders if run_facts(folder).keys() >= REQUIRED_FACTS), None)


def replace_run(folder: Path) -> None:
    """Delete an earlier run so that a new one can use its folder; never any other folder."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise _not_a_run_error(folder, "it is not a folder")
    if not any(folder.iterdir()):
        return
    facts = run_facts(folder)
    if not facts.keys() >= REQUIRED_FACTS:
        raise _not_a_run_error(folder, f"it contains no {RUN_FILE} of Torchyard")
    folder = folder.resolve()
    if (place := used_place(folder)) is not None:
        raise _not_a_run_error(folder, f"{place} is inside it")
    if facts.get("state") == "running" and not is_gone(facts.get("owner")):
        raise UsageError(
            f"{folder} contains a run that is still running",
            why=f"process {(facts.get('owner') or {}).get('pid')} is writing to it",
            hint="wait until it has finished, stop it, or use another folder",
        )
    remove_run_folder(folder)


def remove_run_folder(folder: Path) -> None:
    """Delete a folder; renamed first, so that an interrupted deletion leaves no partial run."""
    removed = folder.with_name(f".{folder.name}{REMOVED_MARK}{secrets.token_hex(4)}")
    with write_errors(folder, kept="the run"):
        folder.rename(removed)
    with write_errors(removed, kept="the rest"):
        shutil.rmtree(removed)


def used_place(folder: Path) -> Path | None:
    """Return the current folder or the home folder if it is inside this one."""
    places = (Path.cwd(), Path.home())
    return next((one for one in places if one.resolve().is_relative_to(folder.resolve())), None)


def run_facts(folder: Path) -> dict[str, Any]:
    """Return the contents of `run.json`, unchecked; empty if it cannot be read."""
    try:
        facts = read_json(folder / RUN_FILE)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _not_a_run_error(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"{folder} was not deleted", why=why, hint="delete it yourself, or use another folder"
    )


def read_stored(
    path: Path,
    *,
    what: str,
    newest: int,
    hint: str = "restore the file from a backup",
    absent: TorchyardError | None = None,
    largest_bytes: int = LARGEST_ROWS_BYTES,
) -> dict[str, Any]:
    """Read a JSON object with a `format`; raise `absent` if there is no file, else ResultsDamaged."""
    try:
        record = read_json(path, largest_bytes=largest_bytes)
    except OSError as error:
        if absent is not None and error.errno in (ENOENT, ENOTDIR, EISDIR):
            raise absent from error
        raise unreadable_error(path, error) from error
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise ResultsDamaged(f"{path}, line {line}: not JSON", why=str(error), hint=hint) from error
    version = record.get("format") if isinstance(record, dict) else None
    if not isinstance(record, dict) or type(version) is not int or version < 1:
        why = "it is not a JSON object with a valid `format`"
        raise ResultsDamaged(f"{path} is not {what}", why=why, hint=hint)
    check_format(path, record, newest)
    return record


T = TypeVar("T")
_AGAIN = "profile the program again"
LARGEST_PROFILE_BYTES: Final = 1 << 30
"""Maximum size of a profile, including its flow graph."""


def new_output_folder(folder: Path | None, *, home: Path) -> Path:
    """Create an empty folder for a profile: the given one, or a new one in `home`."""
    if folder is None:
        return new_run_folder(home)
    with write_errors(folder, kept="existing data"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} already exists", hint="use a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def write_profile_file(path: Path, record: object) -> Path:
    """Write a record atomically."""
    replace_file(path, to_json_text(encode(record), indent=1))
    return path


def find_profile_file(text: str, *, home: Path, file_name: str, none_yet: UsageError) -> Path:
    """Return the file of a profile from `latest`, a folder, a name in `home`, or a file."""
    if text == "latest":
        folders = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        for folder in folders:
            if (folder / file_name).is_file():
                return folder / file_name
        raise none_yet
    path = Path(text).expanduser()
    for candidate in (path / file_name, path, home / text / file_name):
        if candidate.is_file():
            return candidate
    raise UsageError(f"there is no profile at {text}", hint="give a folder, a file, or `latest`")


def read_profile_file(kind: type[T], path: Path, *, newest: int) -> T:
    """Read a profile; raise ResultsDamaged if it is damaged or of a newer format."""
    data = read_stored(
        path, what="a profile", newest=newest, hint=_AGAIN, largest_bytes=LARGEST_PROFILE_BYTES
    )
    values = {key: value for key, value in data.items() if value is not None}
    try:
        return decode(kind, values, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint=_AGAIN) from error

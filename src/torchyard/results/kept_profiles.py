"""Profiles of any kind as files: find them by what a user types, read them completely or refuse.

Knows names, formats and JSON, nothing of what a profile contains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text, write_failed
from torchyard.results.directory import new_run_folder

__all__ = ["find_kept", "new_kept_folder", "read_kept", "write_kept"]

T = TypeVar("T")
_AGAIN = "profile the program again"
LARGEST_PROFILE_BYTES: Final = 1 << 30
"""Of a profile with its flow graph."""


def new_kept_folder(folder: Path | None, *, home: Path) -> Path:
    """An empty folder for a profile: the one that is named, or a new one below the home."""
    if folder is None:
        return new_run_folder(home)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is there already", hint="name a folder that is not there")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(folder, error, kept="what is there") from error
    return folder.absolute()


def write_kept(path: Path, record: object) -> Path:
    """Keep a record; a reader sees all of it or none."""
    replace_file(path, to_json_text(encode(record), indent=1))
    return path


def find_kept(text: str, *, home: Path, file_name: str, none_yet: UsageError) -> Path:
    """The file of a profile: `latest`, a folder, its name below the home, or the file itself."""
    if text == "latest":
        folders = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        for folder in folders:
            if (folder / file_name).is_file():
                return folder / file_name
        raise none_yet
    path = Path(text).expanduser()
    for found in (path / file_name, path, home / text / file_name):
        if found.is_file():
            return found
    raise UsageError(f"there is no profile at {text}", hint="name a folder, a file, or `latest`")


def read_kept(kind: type[T], path: Path, *, newest: int) -> T:
    """The file as a record; raises ResultsDamaged when it is broken or newer than we are."""
    try:
        data: Any = read_json(path, largest_bytes=LARGEST_PROFILE_BYTES)
    except (OSError, ValueError) as error:
        raise ResultsDamaged(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise ResultsDamaged(f"{path} is no profile", hint=_AGAIN)
    if data["format"] > newest:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard (format {data['format']}, we read {newest})",
            hint="update Torchyard",
        )
    known = {key: value for key, value in data.items() if value is not None}
    try:
        return decode(kind, known, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint=_AGAIN) from error

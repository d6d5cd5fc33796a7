"""Find, read and write profile files of any kind.

Handles names, format versions and JSON, independent of the contents of a profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text, write_error
from torchyard.results.directory import new_run_folder
from torchyard.results.plausibility import check_format

T = TypeVar("T")
_AGAIN = "profile the program again"
LARGEST_PROFILE_BYTES: Final = 1 << 30
"""Maximum size of a profile, including its flow graph."""


def new_output_folder(folder: Path | None, *, home: Path) -> Path:
    """Create an empty folder for a profile: the given one, or a new one in `home`."""
    if folder is None:
        return new_run_folder(home)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} already exists", hint="use a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error, kept="what is there") from error
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
    try:
        data: Any = read_json(path, largest_bytes=LARGEST_PROFILE_BYTES)
    except (OSError, ValueError) as error:
        raise ResultsDamaged(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise ResultsDamaged(f"{path} is not a profile", hint=_AGAIN)
    check_format(path, data, newest)
    values = {key: value for key, value in data.items() if value is not None}
    try:
        return decode(kind, values, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint=_AGAIN) from error

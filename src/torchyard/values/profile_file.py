"""Reads the worker's JSON, and keeps whole profiles as files that can be read again.

A profile folder holds `profile.json` (what the report needs, complete) beside what the runs left.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.core.values import ValueProfile
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.durable import replace_file, to_json_text
from torchyard.results.run_home import home_folder, new_run_folder

__all__ = [
    "FORMAT",
    "PROFILE_FILE",
    "find_profile",
    "new_profile_folder",
    "read_profile",
    "read_worker_file",
    "write_profile",
]

FORMAT: Final = 1
PROFILE_FILE: Final = "profile.json"


def profiles_home() -> Path:
    """The folder that profiles go to when none is named."""
    return home_folder() / "values"


def new_profile_folder(folder: Path | None = None) -> Path:
    """An empty folder for a profile: the one that is named, or a new one at home."""
    if folder is None:
        return new_run_folder(profiles_home())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="name a folder that is not there")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_profile(folder: Path, profile: ValueProfile) -> Path:
    """Keep a profile; a reader sees all of it or none."""
    path = folder / PROFILE_FILE
    replace_file(path, to_json_text(encode(profile), indent=1))
    return path


def find_profile(text: str) -> Path:
    """The file of a profile: `latest`, a folder, or the file itself."""
    if text == "latest":
        home = profiles_home()
        folders = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        for folder in folders:
            if (folder / PROFILE_FILE).is_file():
                return folder / PROFILE_FILE
        raise UsageError("there is no profile yet", hint="make one with `torchyard values SCRIPT`")
    path = Path(text).expanduser()
    for found in (path / PROFILE_FILE, path, profiles_home() / text / PROFILE_FILE):
        if found.is_file():
            return found
    raise UsageError(f"there is no profile at {text}", hint="name a folder, a file, or `latest`")


def read_profile(path: Path) -> ValueProfile:
    """A kept profile; raises ResultsDamaged when it is broken or newer than we are."""
    return _decoded(_json(path), path)


def read_worker_file(path: Path) -> ValueProfile:
    """What the worker wrote, possibly cut off by the end of its program."""
    return _decoded(_json(path), path)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsDamaged(
            f"{path} cannot be read: {error}", hint="profile the program again"
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise ResultsDamaged(f"{path} is no profile", hint="profile the program again")
    if data["format"] > FORMAT:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard (format {data['format']}, we read {FORMAT})",
            hint="update Torchyard",
        )
    return data


def _decoded(data: dict[str, Any], path: Path) -> ValueProfile:
    plain = {key: value for key, value in data.items() if value is not None}
    try:
        return decode(ValueProfile, plain, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint="profile the program again") from error

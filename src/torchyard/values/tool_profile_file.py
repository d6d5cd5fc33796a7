"""Keeps profiles of tools as files that can be read again: `tool-profile.json` in a folder each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.core.tool_profile import FORMAT, ToolProfile
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.durable import replace_file, to_json_text
from torchyard.results.run_home import home_folder, new_run_folder

__all__ = [
    "TOOL_PROFILE_FILE",
    "find_tool_profile",
    "new_tool_folder",
    "read_tool_profile",
    "tool_profiles_home",
    "write_tool_profile",
]

TOOL_PROFILE_FILE: Final = "tool-profile.json"


def tool_profiles_home() -> Path:
    """The folder that profiles of tools go to when none is named."""
    return home_folder() / "profiles"


def new_tool_folder(folder: Path | None) -> Path:
    """An empty folder: the one that is named, or a new one at home."""
    if folder is None:
        return new_run_folder(tool_profiles_home())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="name a folder that is not there")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def write_tool_profile(folder: Path, profile: ToolProfile) -> Path:
    """Keep it; a reader sees all of it or none."""
    path = folder / TOOL_PROFILE_FILE
    replace_file(path, to_json_text(encode(profile), indent=1))
    return path


def find_tool_profile(text: str) -> Path:
    """The file of a profile: `latest`, a folder, or the file itself."""
    home = tool_profiles_home()
    if text == "latest":
        folders = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        for folder in folders:
            if (folder / TOOL_PROFILE_FILE).is_file():
                return folder / TOOL_PROFILE_FILE
        raise UsageError(
            "there is no profile of a tool yet",
            hint="make one with `torchyard profile --tool torch SCRIPT`",
        )
    path = Path(text).expanduser()
    for found in (path / TOOL_PROFILE_FILE, path, home / text / TOOL_PROFILE_FILE):
        if found.is_file():
            return found
    raise UsageError(f"there is no profile at {text}", hint="name a folder, a file, or `latest`")


def read_tool_profile(path: Path) -> ToolProfile:
    """A kept profile; raises ResultsDamaged when it is broken or newer than we are."""
    try:
        data: Any = json.loads(path.read_bytes())
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
    try:
        return decode(ToolProfile, data, where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint="profile the program again") from error

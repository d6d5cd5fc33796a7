"""Keeps profiles of tools as files that can be read again: `tool-profile.json` in a folder each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from torchyard.core.tool_profile import FORMAT, ToolProfile
from torchyard.errors import UsageError
from torchyard.results.run_home import home_folder
from torchyard.values.kept_profiles import find_kept, new_kept_folder, read_kept, write_kept

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
    return new_kept_folder(folder, home=tool_profiles_home())


def write_tool_profile(folder: Path, profile: ToolProfile) -> Path:
    """Keep it; a reader sees all of it or none."""
    return write_kept(folder / TOOL_PROFILE_FILE, profile)


def find_tool_profile(text: str) -> Path:
    """The file of a profile: `latest`, a folder, or the file itself."""
    none_yet = UsageError(
        "there is no profile of a tool yet",
        hint="make one with `torchyard profile --tool torch SCRIPT`",
    )
    home = tool_profiles_home()
    return find_kept(text, home=home, file_name=TOOL_PROFILE_FILE, none_yet=none_yet)


def read_tool_profile(path: Path) -> ToolProfile:
    """A kept profile; raises ResultsDamaged when it is broken or newer than we are."""
    return read_kept(ToolProfile, path, newest=FORMAT)

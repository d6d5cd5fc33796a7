"""Profiles of values as files: what the worker wrote, and what the report needs.

A profile folder holds `profile.json` (what the report needs, complete) beside what the runs left.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.core.values import ValueProfile
from torchyard.errors import UsageError
from torchyard.results.run_home import home_folder
from torchyard.values.kept_profiles import find_kept, new_kept_folder, read_kept, write_kept

__all__ = [
    "FORMAT",
    "PROFILE_FILE",
    "find_profile",
    "new_profile_folder",
    "read_profile",
    "write_profile",
]

FORMAT: Final = 1
PROFILE_FILE: Final = "profile.json"


def profiles_home() -> Path:
    """The folder that profiles go to when none is named."""
    return home_folder() / "values"


def new_profile_folder(folder: Path | None = None) -> Path:
    """An empty folder for a profile: the one that is named, or a new one at home."""
    return new_kept_folder(folder, home=profiles_home())


def write_profile(folder: Path, profile: ValueProfile) -> Path:
    """Keep a profile; a reader sees all of it or none."""
    return write_kept(folder / PROFILE_FILE, profile)


def find_profile(text: str) -> Path:
    """The file of a profile: `latest`, a folder, or the file itself."""
    none_yet = UsageError("there is no profile yet", hint="make one with `torchyard values SCRIPT`")
    return find_kept(text, home=profiles_home(), file_name=PROFILE_FILE, none_yet=none_yet)


def read_profile(path: Path) -> ValueProfile:
    """A kept profile, or what the worker wrote of a program that may have been cut off."""
    profile = read_kept(ValueProfile, path, newest=FORMAT)
    findings = tuple(
        replace(finding, proof=finding.proof.by_current_rules()) for finding in profile.findings
    )
    return replace(profile, findings=findings)

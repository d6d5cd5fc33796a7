"""How a profiled program was run, stored beside its profile, so that it can be run again and patched.

It names folders of this machine, so it is a file of its own and no part of the profile that is passed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError
from torchyard.results.directory import read_profile_file, write_profile_file
from torchyard.values.model import ProfileRequest, ValueProfile

REQUEST_FILE: Final = "request.json"
FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class ProfiledSource:
    """A source file right after the profiled run."""

    sha256: str
    written: bool = False
    """Whether it was written while the program ran."""


@dataclass(frozen=True, kw_only=True)
class StoredRequest:
    """A request, the folder in which it ran, and the files that its findings name."""

    format: int
    folder: str
    request: ProfileRequest
    sources: dict[str, ProfiledSource] = field(default_factory=dict)


def store_request(
    folder: Path, request: ProfileRequest, profile: ValueProfile, *, began_s: float
) -> None:
    """Store a request beside a profile; `began_s` is the time when the program started."""
    working_folder = Path.cwd()
    sources = {}
    for name in sorted({finding.place.file for finding in profile.findings}):
        path = working_folder / name
        try:
            if path.suffix == ".py" and path.is_file():
                written = path.stat().st_mtime >= began_s
                sources[name] = ProfiledSource(sha256=digest(path.read_bytes()), written=written)
        except OSError:
            continue
    stored = StoredRequest(
        format=FORMAT, folder=str(working_folder), request=request, sources=sources
    )
    write_profile_file(folder / REQUEST_FILE, stored)


def read_request(profile: Path) -> StoredRequest:
    """Read the request beside the file of a profile."""
    path = profile.parent / REQUEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{profile.parent} does not say how the program was run",
            why="it was made by an earlier version or by `torchyard.values()`",
            hint="give the program instead: `torchyard values fix train.py`",
        )
    return read_profile_file(StoredRequest, path, newest=FORMAT)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()

"""Patches and what is known about them; the record of a `values fix` run.

`StoredRequest` says how a profiled program was run, so that it can be run again. It names folders of this
machine, so it is a file of its own and no part of the profile that is passed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Interval
from torchyard.errors import UsageError
from torchyard.results.directory import read_profile_file, write_profile_file
from torchyard.values.model import ProfileRequest, ValueProfile

UNINITIALIZED: Final = "uninitialized"
DROPPED_WRITE: Final = "dropped-write"
HOISTED: Final = "hoisted"
SET_TO_NONE: Final = "set-to-none"
SPARSE_GRADIENT: Final = "sparse-gradient"
NARROWER_TYPE: Final = "narrower-type"
OPTIONAL_CLASSES: Final = (NARROWER_TYPE, SPARSE_GRADIENT)
"""Classes that are proposed only on request."""
FORMAT: Final = 1


class NotProposed(Exception):
    """No patch of a finding is certain to keep the results; the reason is the text."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Replacement of bytes of a source file; offsets of the unchanged file."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Edits of one file that fix one finding."""

    kind: str
    """The class of the patch, such as `uninitialized`."""
    file: str
    """As the profile names it."""
    text: str
    """What is changed, in words."""
    edits: tuple[Edit, ...]
    rounds: bool = False
    """Whether it adds numbers in another order, so that results are compared up to rounding."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Runs of the patched program, compared with runs of the unchanged one."""

    passed: bool = False
    why: str = ""
    """Why it did not pass."""
    runs: int = 0
    """Pairs of runs whose results are equal bit for bit."""
    seeds_matter: bool = False
    """Whether other seeds gave other results: the program was compared on several inputs."""
    compared: tuple[str, ...] = ()
    """Kinds of results."""
    rounded: str = ""
    """How far results differ by rounding; empty if every bit is equal."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Time saved by the patch, from paired runs."""

    share: float | None = None
    """Of the time of a step, or of a program without steps; negative if the patch is slower."""
    interval: Interval | None = None
    clock: str = ""
    pairs: int = 0
    why: str = ""
    """Why it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One finding and its patch, or why there is none."""

    finding: int
    """Number in the report of `values`, from 1."""
    pattern: str
    operator: str
    file: str
    line: int
    kind: str = ""
    text: str = ""
    diff: str = ""
    why_not: str = ""
    verification: Verification = field(default_factory=Verification)
    gain: Gain = field(default_factory=Gain)

    @property
    def proposed(self) -> bool:
        """Whether the patch may be applied."""
        return bool(self.diff) and not self.why_not and self.verification.passed


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A file that was changed, and its earlier content."""

    file: str
    backup: str


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """All findings of a profile with their patches."""

    format: int = FORMAT
    profile: str = ""
    program: tuple[str, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    diff: str = ""
    """All proposed patches together."""
    together: Verification = field(default_factory=Verification)
    """Of all proposed patches together; the same as that of a single one."""
    gain: Gain = field(default_factory=Gain)
    applied: tuple[Applied, ...] = ()
    interrupted: bool = False

    @property
    def proposed(self) -> tuple[Proposal, ...]:
        """Return the patches that may be applied."""
        return tuple(one for one in self.proposals if one.proposed)


REQUEST_FILE: Final = "request.json"
REQUEST_FORMAT: Final = 1


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
        format=REQUEST_FORMAT, folder=str(working_folder), request=request, sources=sources
    )
    write_profile_file(folder / REQUEST_FILE, stored)


def read_request(profile: Path) -> StoredRequest:
    """Read the request beside the file of a profile."""
    path = profile.parent / REQUEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{profile.parent} does not say how the program was run",
            why="it was made by an earlier version or by `torchyard.profile_values()`",
            hint="give the program instead: `torchyard values fix train.py`",
        )
    return read_profile_file(StoredRequest, path, newest=REQUEST_FORMAT)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()

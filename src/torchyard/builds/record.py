"""The record of a finished build: sources, options, checks and times, and its file on disk.

It is decoded leniently, so every field added later needs a default. `running.recording` collects
the values; this module writes, reads and lists records and finds a build by name.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from torchyard.builds.build_folders import BuildFolder, BuildsDirectory, check_build_name
from torchyard.builds.recipe import Scalar, SourceKind
from torchyard.core.records import decode, encode, nearest_hint, renamed
from torchyard.core.study import Target
from torchyard.errors import MissingTool, ResultsDamaged, UsageError
from torchyard.files.safe_writing import replace_json

RECORD_VERSION: Final = 1
"""Increased only if an older Torchyard would misread the file."""

OptionVerdictKind = Literal["honoured", "overridden", "ignored", "unknown"]
FindingLevel = Literal["failure", "warning"]


def _without_credentials(origin: str) -> str:
    """Return a URL without user name, password and query (signed URLs have a token there)."""
    parts = urlsplit(origin)
    if not parts.netloc:
        return origin
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """The exact source that a component was built from."""

    kind: SourceKind
    origin: str
    """Where it came from, without user names, passwords and tokens."""
    version: str = ""
    """Version of an sdist or Debian source package; for git, the requested branch, tag or commit."""
    commit: str = ""
    """Full commit hash, for git."""
    sha256: str = ""
    """Checksum of the archive."""
    dirty: bool = False
    """The git tree had uncommitted changes when it was copied."""
    digest: str = ""
    """Digest of a folder without a commit, with a description of what was digested."""
    submodules: dict[str, str] = field(default_factory=dict)
    """Path -> full commit hash."""
    overridden: tuple[str, ...] = ()
    """Submodules whose revision was set by the recipe."""
    files: dict[str, str] = field(default_factory=dict)
    """Name -> sha256 for sources of several files (a Debian source package)."""
    patches: tuple[str, ...] = ()
    """Patches that the packager applied, in order."""

    def __post_init__(self) -> None:
        """Remove credentials from the origin."""
        object.__setattr__(self, "origin", _without_credentials(self.origin))


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """A patch that was applied."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ToolRecord:
    """A tool of the build: compiler, linker, cmake, ninja, python."""

    name: str
    version: str
    path: str


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """A wheel of the build."""

    file: str
    sha256: str
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PackageRecord:
    """A Python package of the environment."""

    name: str
    version: str
    origin: str = ""
    """Empty: from an index. A URL: installed from there, such as a wheel of this build. A path:
    not installed in the environment, but visible from that folder of the base interpreter."""

    def __post_init__(self) -> None:
        """Remove credentials from the origin."""
        object.__setattr__(self, "origin", _without_credentials(self.origin))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The cost of one step."""

    step: str
    wall_s: float
    cpu_s: float | None = None
    compiles: int = 0
    peak_memory_mib: float | None = None
    """Peak memory of the largest compile."""
    cache_hit_rate: float | None = None
    """Between 0 and 1; None without a compiler cache."""


@dataclass(frozen=True, kw_only=True)
class OptionVerdict:
    """Comparison of a requested option with its effective value."""

    name: str
    requested: str
    cache: str | None = None
    """Value in CMakeCache.txt; None if it is not there."""
    config: str | None = None
    """Value that the built module reports; None if it reports none."""
    verdict: OptionVerdictKind
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """A problem found by a check."""

    check: str
    level: FindingLevel
    what: str
    why: str = ""
    fix: str = renamed("", formerly="mend")


@dataclass(frozen=True, kw_only=True)
class ImportedModule:
    """The module as imported outside the source tree."""

    name: str
    version: str
    file: str


@dataclass(frozen=True, kw_only=True)
class LinkedLibrary:
    """A shared library that a checked library depends on, and where the loader finds it."""

    name: str
    """Name in the dynamic section (DT_NEEDED)."""
    path: str
    """Empty if it is not found."""
    wanted_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """The result of one smoke test."""

    name: str
    passed: bool
    duration_s: float
    output: str = ""
    """The last lines of the output if it failed."""
    skipped: str = ""
    """Reason why it was not run; empty if it was."""


@dataclass(frozen=True, kw_only=True)
class TestFileReport:
    """Results of all tests of one test file."""

    __test__: ClassVar[bool] = False
    """Keeps pytest from collecting the class."""

    path: str
    passed: int = 0
    failed: int = 0
    errors: int = 0
    """Tests with failed setup or teardown, and modules that could not be collected."""
    skipped: int = 0
    expected_failures: int = 0
    """Marked xfail by the project."""
    not_run: int = 0
    """Collected but not started, because the interpreter ended."""
    new_failures: tuple[str, ...] = ()
    """Failures and errors that are not known."""
    known_failures: tuple[str, ...] = ()
    """Known failures that failed."""
    now_passing: tuple[str, ...] = renamed((), formerly="mended")
    """Known failures that passed."""
    unseen: tuple[str, ...] = ()
    """Known failures that match no collected test."""
    crashed_in: tuple[str, ...] = ()
    """Tests that crashed the interpreter; they count as failed."""
    crashes: tuple[str, ...] = ()
    """Cause of each crash: `signal SIGABRT`, `exit code 3`."""
    timed_out: bool = False
    duration_s: float = 0.0
    junit: tuple[str, ...] = ()
    """One JUnit file for each completed run of the interpreter."""
    log: str = ""

    @property
    def good(self) -> bool:
        """Whether all tests ran and there are no new failures."""
        return not (self.new_failures or self.not_run or self.timed_out)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check, or of all checks of a component."""

    findings: tuple[CheckFinding, ...] = ()
    imported: ImportedModule | None = None
    options: tuple[OptionVerdict, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    """Build settings that the built module reports."""
    libraries: tuple[LinkedLibrary, ...] = ()
    loaded: tuple[str, ...] = ()
    """Shared libraries loaded after the import."""
    smoke: tuple[SmokeResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifyReport(CheckResult):
    """The verification report of a component."""

    component: str
    duration_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whether there is no finding of level `failure`."""
        return all(finding.level != "failure" for finding in self.findings)


@dataclass(frozen=True, kw_only=True)
class RecipeIdentity:
    """The requested recipe, variant, version and settings."""

    name: str
    variant: str = ""
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Component -> key -> value, as given with `--set`."""


@dataclass(frozen=True, kw_only=True)
class ComponentRecord:
    """One component of a finished build."""

    name: str
    version: str = ""
    recipe: str = ""
    variant: str = ""
    needs: tuple[str, ...] = ()
    source: SourceIdentity | None = None
    patches: tuple[PatchRecord, ...] = ()
    options: dict[str, Scalar] = field(default_factory=dict)
    """Requested options; the effective values are in `verified.options`."""
    toolchain: tuple[ToolRecord, ...] = ()
    wheels: tuple[WheelRecord, ...] = ()
    prefix_files: tuple[str, ...] = ()
    """Relative to the prefix."""
    edited: bool = False
    """The working copy was edited and rebuilt: the source alone does not identify the result."""
    reused: str = ""
    """Key of the build cache that it was restored from; empty if it was compiled."""
    verified: VerifyReport | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """The record of a finished build."""

    record_version: int = RECORD_VERSION
    torchyard: str = ""
    """Torchyard version that wrote the record."""
    name: str
    recipe: RecipeIdentity
    plan_fingerprint: str = ""
    components: tuple[ComponentRecord, ...] = ()
    times: tuple[StepTimes, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    packages: tuple[PackageRecord, ...] = ()
    python: str = ""
    """Script that starts the interpreter of the environment, from outside any root folder."""
    root: str = ""
    """Root folder of the build; empty means the root of this machine."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the built programs need at run time."""
    started: str = ""
    """UTC, ISO 8601."""
    finished: str = ""

    def component(self, name: str) -> ComponentRecord | None:
        """Return the component with this name; None if there is none."""
        return next((part for part in self.components if part.name == name), None)


_DAMAGED_HINT: Final = "restore the file from a backup, or build again to rewrite it"


@dataclass(frozen=True, kw_only=True)
class BuildEntry:
    """A build on disk, finished or not."""

    name: str
    folder: Path
    record: BuildRecord | None
    """None if the build is unfinished or the record is unreadable."""
    problem: str = ""
    """Why the record is unreadable."""


def write_record(folder: Path, record: BuildRecord) -> Path:
    """Write the record atomically and return its path."""
    path = BuildFolder(folder=folder).record_file
    replace_json(path, encode(record))
    return path


def read_record(folder: Path) -> BuildRecord:
    """Read the record of a build; raise ResultsDamaged if it is invalid."""
    path = BuildFolder(folder=folder).record_file
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} is not a finished build",
            why=f"{path} is missing",
            hint="torchyard build list shows all builds",
        ) from error
    except OSError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise ResultsDamaged(
            f"{path}, line {line}: invalid JSON", why=str(error), hint=_DAMAGED_HINT
        ) from error
    version = content.get("record_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultsDamaged(f"{path}: not the record of a build", hint=_DAMAGED_HINT)
    if version > RECORD_VERSION:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard ({content.get('torchyard') or 'unknown'})",
            why=f"its version is {version}; this Torchyard reads up to {RECORD_VERSION}",
            hint="update Torchyard to read it",
        )
    try:
        return decode(BuildRecord, content, where="", strict=False)
    except UsageError as error:
        raise ResultsDamaged(
            f"{path}: not the record of a build", why=error.what, hint=_DAMAGED_HINT
        ) from error


def read_earlier(folder: Path) -> BuildRecord | None:
    """Read the record of a build; return None if it is missing or invalid."""
    try:
        return read_record(folder)
    except (UsageError, ResultsDamaged):
        return None


def list_builds(home: BuildsDirectory) -> tuple[BuildEntry, ...]:
    """Return all builds, finished or not, sorted by name."""
    try:
        folders = sorted(path for path in home.builds.iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(_entry(folder) for folder in folders if not folder.name.startswith("."))


def find_build(name_or_path: str, home: BuildsDirectory) -> BuildEntry:
    """Return a finished build by name or folder.

    A name never contains a slash; `./name` is a folder.
    """
    if os.sep in name_or_path or name_or_path in (".", ".."):
        folder = Path(name_or_path).expanduser().absolute()
    else:
        check_build_name(name_or_path, where="build name")
        folder = home.builds / name_or_path
        if not folder.is_dir():
            names = [entry.name for entry in list_builds(home)]
            raise UsageError(
                f"there is no build {name_or_path!r} in {home.builds}",
                hint=nearest_hint(name_or_path, names, what="build"),
            )
    return BuildEntry(name=folder.name, folder=folder, record=read_record(folder))


def target_of_build(name_or_path: str, home: BuildsDirectory | None = None) -> Target:
    """Return the target of a finished build: its interpreter and run-time variables."""
    entry = find_build(name_or_path, home or BuildsDirectory.default())
    record = entry.record
    if record is None or not record.python:
        raise UsageError(
            f"the build {entry.name!r} cannot be a target: it has no interpreter",
            why="it contains only libraries",
            hint="use a build of PyTorch, or the environment that uses these libraries",
        )
    if not os.access(record.python, os.X_OK):
        raise MissingTool(
            f"the interpreter of the build {entry.name!r} does not exist: {record.python}",
            why="the folder was moved or cleaned after the build",
            hint=f"torchyard build {record.recipe.name} --name {entry.name}",
        )
    return Target(name=entry.name, python=record.python, variables=tuple(record.variables.items()))


def freeze_text(record: BuildRecord) -> str:
    """Return the packages of the environment in the format of `pip freeze`."""
    lines: list[str] = []
    for package in record.packages:
        if "://" in package.origin:
            lines.append(f"{package.name} @ {package.origin}")
        elif package.origin:
            lines.append(f"{package.name}=={package.version}  # seen in {package.origin}")
        else:
            lines.append(f"{package.name}=={package.version}")
    return "".join(f"{line}\n" for line in lines)


def _entry(folder: Path) -> BuildEntry:
    try:
        return BuildEntry(name=folder.name, folder=folder, record=read_record(folder))
    except ResultsDamaged as error:
        return BuildEntry(name=folder.name, folder=folder, record=None, problem=error.what)
    except UsageError:
        return BuildEntry(name=folder.name, folder=folder, record=None)

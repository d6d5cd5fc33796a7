"""The record of a finished build: sources, options, checks and times, and its file on disk.

A record holds what is needed to name the same sources again, to trust the options, and to say where
the time went. It is decoded leniently, so every field added later needs a default.
`running.recording` gathers the values; this module writes, reads and lists records and finds a
build by name.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from torchyard.builds.build_folders import BuildFolder, YardHome, check_build_name
from torchyard.builds.recipe import Scalar, SourceKind
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.core.study import Target
from torchyard.errors import MissingTool, ResultsDamaged, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text, write_failed

RECORD_VERSION: Final = 1
"""Raised only when an older Torchyard would misread the file."""

OptionVerdictKind = Literal["honoured", "overridden", "ignored", "unknown"]
FindingLevel = Literal["failure", "warning"]


def _without_credentials(origin: str) -> str:
    """An address without user name, password and query (signed links have a token there)."""
    parts = urlsplit(origin)
    if not parts.netloc:
        return origin
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Exactly which source a component was built from."""

    kind: SourceKind
    origin: str
    """Where it came from; user names, passwords and tokens are cut off."""
    version: str = ""
    """Of an sdist or a Debian source package; the branch, tag or commit asked for, with git."""
    commit: str = ""
    """Full, for git."""
    sha256: str = ""
    """Of the archive."""
    dirty: bool = False
    """A git tree that was copied with changes that are in no commit."""
    digest: str = ""
    """Of the content of a folder, where no commit says it; the text says what was digested."""
    submodules: dict[str, str] = field(default_factory=dict)
    """Path -> full commit."""
    overridden: tuple[str, ...] = ()
    """Submodules whose revision is the recipe's and not the repository's."""
    files: dict[str, str] = field(default_factory=dict)
    """Name -> sha256, where a source consists of several files (a Debian source package)."""
    patches: tuple[str, ...] = ()
    """Patches that the packager applied, in order."""

    def __post_init__(self) -> None:
        """No secret gets into a record, wherever the address came from."""
        object.__setattr__(self, "origin", _without_credentials(self.origin))


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """A patch that was applied."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ToolRecord:
    """A program that took part: compiler, linker, cmake, ninja, python."""

    name: str
    version: str
    path: str


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """A wheel that was made."""

    file: str
    sha256: str
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PackageRecord:
    """A Python package of the environment."""

    name: str
    version: str
    origin: str = ""
    """Empty: from an index. An address: installed from there, such as a wheel of this build. A plain
    path: not in the environment, only seen from it, in that folder of another interpreter."""

    def __post_init__(self) -> None:
        """As for sources: no secret gets into a record."""
        object.__setattr__(self, "origin", _without_credentials(self.origin))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """What one step cost."""

    step: str
    wall_s: float
    cpu_s: float | None = None
    compiles: int = 0
    peak_memory_mib: float | None = None
    """Of the largest single compile."""
    cache_hit_rate: float | None = None
    """Between 0 and 1; None without a compiler cache."""


@dataclass(frozen=True, kw_only=True)
class OptionVerdict:
    """What became of one requested option."""

    name: str
    requested: str
    cache: str | None = None
    """Value in CMakeCache.txt; None when it is not there."""
    config: str | None = None
    """Value the finished module reports; None when it says nothing."""
    verdict: OptionVerdictKind
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """Something that is not as it should be."""

    check: str
    level: FindingLevel
    what: str
    why: str = ""
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class ImportedModule:
    """The module as it imports outside the source tree."""

    name: str
    version: str
    file: str


@dataclass(frozen=True, kw_only=True)
class LinkedLibrary:
    """A shared library that a checked library pulls in, and where the loader takes it from."""

    name: str
    """As it is asked for."""
    path: str
    """Empty when it is not found."""
    wanted_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """How one smoke test ended."""

    name: str
    passed: bool
    duration_s: float
    output: str = ""
    """The last lines, when it failed."""


@dataclass(frozen=True, kw_only=True)
class TestAccount:
    """Every test of one file, accounted for."""

    __test__: ClassVar[bool] = False
    """Not a test class, whatever pytest thinks of the name."""

    path: str
    passed: int = 0
    failed: int = 0
    errors: int = 0
    """Tests whose set-up or tear-down failed, and modules that could not be collected."""
    skipped: int = 0
    expected_failures: int = 0
    """Marked by the project itself."""
    not_run: int = 0
    """Collected, and never started, because the interpreter ended before."""
    new_failures: tuple[str, ...] = ()
    """Failed or errored, and not known."""
    known_failures: tuple[str, ...] = ()
    """Failed, as known."""
    mended: tuple[str, ...] = ()
    """Known failures that passed this time."""
    unseen: tuple[str, ...] = ()
    """Known failures of no test that was collected."""
    crashed_in: tuple[str, ...] = ()
    """Tests in which the interpreter died; they are counted as failed."""
    crashes: tuple[str, ...] = ()
    """How it died, one for each: `signal SIGABRT`, `exit code 3`."""
    timed_out: bool = False
    duration_s: float = 0.0
    junit: tuple[str, ...] = ()
    """One file for each start of the interpreter that came to its end."""
    log: str = ""

    @property
    def good(self) -> bool:
        """Everything ran, and nothing failed that is not known."""
        return not (self.new_failures or self.not_run or self.timed_out)


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What checking a component found."""

    component: str
    findings: tuple[CheckFinding, ...] = ()
    imported: ImportedModule | None = None
    options: tuple[OptionVerdict, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    """What the finished module says of its own build."""
    libraries: tuple[LinkedLibrary, ...] = ()
    loaded: tuple[str, ...] = ()
    """Shared libraries in the process after the import."""
    smoke: tuple[SmokeResult, ...] = ()
    tests: tuple[TestAccount, ...] = ()
    duration_s: float = 0.0

    @property
    def good(self) -> bool:
        """No finding that makes the result unfit for use."""
        return all(finding.level != "failure" for finding in self.findings)


@dataclass(frozen=True, kw_only=True)
class RecipeIdentity:
    """Which recipe, with which choices."""

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
    """As requested; what became of them is in `verified.options`."""
    toolchain: tuple[ToolRecord, ...] = ()
    wheels: tuple[WheelRecord, ...] = ()
    prefix_files: tuple[str, ...] = ()
    """Relative to the prefix."""
    edited: bool = False
    """Its working copy was edited and compiled again: the source alone does not say what it is."""
    verified: VerifyReport | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """A finished build: what a target of that name stands for."""

    record_version: int = RECORD_VERSION
    torchyard: str = ""
    """Version that wrote the record."""
    name: str
    recipe: RecipeIdentity
    plan_fingerprint: str = ""
    components: tuple[ComponentRecord, ...] = ()
    times: tuple[StepTimes, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    packages: tuple[PackageRecord, ...] = ()
    python: str = ""
    """What starts the interpreter of the environment, from outside any root folder."""
    root: str = ""
    """Root folder the build lives in; empty means this machine."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the activation sets for running, as opposed to building."""
    started: str = ""
    """UTC, ISO 8601."""
    finished: str = ""

    def component(self, name: str) -> ComponentRecord | None:
        """The component of that name; None when there is none."""
        return next((part for part in self.components if part.name == name), None)


_MEND: Final = "put the file back from a copy, or build again: it is written anew"


@dataclass(frozen=True, kw_only=True)
class BuildEntry:
    """A build as it lies on disk."""

    name: str
    folder: Path
    record: BuildRecord | None
    """None while it is not finished, or when the record cannot be read."""
    trouble: str = ""
    """Why the record cannot be read."""


def write_record(folder: Path, record: BuildRecord) -> Path:
    """Put the record into the build's folder: the old one or the new one, never half of one."""
    path = BuildFolder(folder=folder).record_file
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path, error, kept="what is there") from error
    replace_file(path, to_json_text(encode(record), indent=1) + "\n")
    return path


def read_record(folder: Path) -> BuildRecord:
    """The record in that folder; ResultsDamaged names the file when it is none of ours."""
    path = BuildFolder(folder=folder).record_file
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} holds no finished build",
            why=f"{path} is missing",
            hint="torchyard build list shows the builds there are",
        ) from error
    except OSError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise ResultsDamaged(
            f"{path}, line {line}: not JSON", why=str(error), hint=_MEND
        ) from error
    version = content.get("record_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultsDamaged(f"{path}: not the record of a build", hint=_MEND)
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
            f"{path}: not the record of a build", why=error.what, hint=_MEND
        ) from error


def read_earlier(folder: Path) -> BuildRecord | None:
    """The record that a new one replaces; None when there is none that can be read."""
    try:
        return read_record(folder)
    except (UsageError, ResultsDamaged):
        return None


def list_builds(home: YardHome) -> tuple[BuildEntry, ...]:
    """Every build of the home, the finished ones and those that are not, by name."""
    try:
        folders = sorted(path for path in home.builds.iterdir() if path.is_dir())
    except OSError:
        return ()
    return tuple(_entry(folder) for folder in folders if not folder.name.startswith("."))


def find_build(name_or_path: str, home: YardHome) -> BuildEntry:
    """The finished build of that name in the home, or in that folder.

    A name never contains a slash; `./name` is a folder.
    """
    if os.sep in name_or_path or name_or_path in (".", ".."):
        folder = Path(name_or_path).expanduser().absolute()
    else:
        check_build_name(name_or_path, where="the build's name")
        folder = home.builds / name_or_path
        if not folder.is_dir():
            names = [entry.name for entry in list_builds(home)]
            raise UsageError(
                f"there is no build {name_or_path!r} in {home.builds}",
                hint=nearest_hint(name_or_path, names, what="build"),
            )
    return BuildEntry(name=folder.name, folder=folder, record=read_record(folder))


def target_of_build(name_or_path: str, home: YardHome | None = None) -> Target:
    """The target that a finished build is: its interpreter, with what the activation sets."""
    entry = find_build(name_or_path, home or YardHome.default())
    record = entry.record
    if record is None or not record.python:
        raise UsageError(
            f"the build {entry.name!r} has no interpreter, so that it cannot be a target",
            why="it made libraries only",
            hint="name a build of PyTorch, or the environment that uses these libraries",
        )
    if not os.access(record.python, os.X_OK):
        raise MissingTool(
            f"the interpreter of the build {entry.name!r} is gone: {record.python}",
            why="the folder was moved or cleaned after the build",
            hint=f"torchyard build {record.recipe.name} --name {entry.name}",
        )
    return Target(name=entry.name, python=record.python, variables=tuple(record.variables.items()))


def freeze_text(record: BuildRecord) -> str:
    """The packages of the environment in pip's form."""
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
        return BuildEntry(name=folder.name, folder=folder, record=None, trouble=error.what)
    except UsageError:
        return BuildEntry(name=folder.name, folder=folder, record=None)

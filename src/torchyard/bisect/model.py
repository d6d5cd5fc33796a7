"""Request and state of a search, and the folder in which they are kept.

request.json        what is searched; the same command finds the same folder
records-NNN.jsonl   what each process measured: rounds, analyses, prepared and skipped revisions
worktrees/SHA/      the checkout of a revision, until the search is decided
logs/               standard error of the setup and of the last run of each revision
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from torchyard.bisect.posterior import Effect, Posterior
from torchyard.core.block import Block
from torchyard.core.comparison import Estimate
from torchyard.core.records import decode, encode
from torchyard.core.study import Study
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_reading import read_json, read_records
from torchyard.files.safe_writing import RecordFile, replace_json, to_json_text, write_error
from torchyard.results.directory import home_folder

FORMAT: Final = 1
_COMMIT_LENGTH: Final = 40
Metric = Literal["time", "printed", "memory", "compile-time", "accuracy", "failure"]
Kind = Literal["variable", "package", "value"]
Ending = Literal["culprit", "several", "no-change", "remaining"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting with its values on both sides; None: it is not set there."""

    kind: Kind
    name: str
    good: str | None
    bad: str | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a search is about; searches with equal requests share their measurements.

    Revisions of `repo`, versions of the package `releases`, or `settings`; a program (`command`) or a
    workload (`study`).
    """

    command: str = ""
    study: Study | None = None
    """The workload; its baseline is measured in the target of each revision."""
    repo: str = ""
    good: str = ""
    bad: str = ""
    releases: str = ""
    packages: tuple[str, ...] = ()
    """Further packages of the environment of each release."""
    settings: tuple[Setting, ...] = ()
    python: str = ""
    setup: str = ""
    recipe: str = ""
    """A recipe that builds each revision or version: its name, or the path of its file."""
    build_settings: tuple[str, ...] = ()
    """Settings of the recipe, as `KEY=VALUE`."""
    metric: Metric = "time"
    format: int = FORMAT

    @property
    def noun(self) -> str:
        """What is searched for."""
        return "setting" if self.settings else "release" if self.releases else "revision"

    @property
    def quantity(self) -> str:
        """What changed."""
        return "time" if self.metric == "printed" else self.metric.replace("-", " ")

    @property
    def failures(self) -> bool:
        """Whether a run fails or not, instead of having a value."""
        return self.metric in {"failure", "accuracy"}

    @property
    def measured(self) -> str:
        """The program, or the workload with its variant."""
        if self.study is None:
            return self.command
        return f"{self.study.workloads[0].label}, {self.study.baseline.name}"

    @property
    def default_folder(self) -> Path:
        """The folder of this search, unless another one is requested."""
        digest = hashlib.sha256(to_json_text(encode(self)).encode("ascii")).hexdigest()
        return home_folder() / "bisect" / digest[:16]


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision of the range; the first one is good, the last one is bad."""

    commit: str
    subject: str

    @property
    def short(self) -> str:
        """The abbreviated commit; the whole text of other names."""
        return self.commit[:10] if len(self.commit) == _COMMIT_LENGTH else self.commit


class RevisionFailed(Exception):
    """A revision cannot be measured."""

    def __init__(self, commit: str, why: str) -> None:
        super().__init__(why)
        self.commit = commit
        self.why = why


@dataclass(frozen=True, kw_only=True)
class Round:
    """One run of each of some revisions, in random order."""

    blocks: tuple[Block, ...]
    took_s: float
    signatures: dict[str, dict[str, str]] = field(default_factory=dict)
    """Signatures of revisions that were measured for the first time."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis of the good against the bad revision."""

    launches: int
    elapsed_s: float
    passed: bool
    """Whether the search could begin."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A revision that cannot be measured."""

    commit: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A revision whose checkout and setup are complete."""

    commit: str


Record = Round | Analysis | Skipped | Ready
_KINDS: Final[dict[str, type[Record]]] = {
    "round": Round,
    "analysis": Analysis,
    "skipped": Skipped,
    "ready": Ready,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


@dataclass(kw_only=True)
class State:
    """Everything that was recorded, in order."""

    rounds: list[Round] = field(default_factory=list)
    analyses: list[Analysis] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)

    @property
    def elapsed_s(self) -> float:
        """Measuring time of all processes that worked on this search."""
        return sum(one.took_s for one in self.rounds)

    @property
    def disturbed(self) -> int:
        """Rounds in which something else on the machine disturbed a run."""
        return sum(any(block.dirty for block in one.blocks) for one in self.rounds)

    @property
    def passed(self) -> bool:
        """Whether good and bad differ by the ordinary verdict."""
        return any(one.passed for one in self.analyses)

    @property
    def signatures(self) -> dict[str, dict[str, str]]:
        """Signatures of all revisions of which they were computed."""
        return {name: value for one in self.rounds for name, value in one.signatures.items()}

    def add(self, record: Record) -> None:
        """Add a record."""
        if isinstance(record, Round):
            self.rounds.append(record)
        elif isinstance(record, Analysis):
            self.analyses.append(record)
        elif isinstance(record, Skipped):
            self.skipped[record.commit] = record.why
        else:
            self.ready.add(record.commit)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a search."""

    ending: Ending
    revisions: tuple[Revision, ...]
    """Revisions that could be measured; indices of the posterior refer to them."""
    posterior: Posterior
    candidates: tuple[Revision, ...]
    """The culprit; or the revisions that contain the change with 95 % probability. Revisions that
    cannot be measured are included."""
    ranges: tuple[tuple[str, str], ...] = ()
    """Several changes: of each, the last commit before it and the first one after it."""
    effect: Effect | None = None
    """Time after the change divided by the time before it."""
    estimate: Estimate | None
    """Good against bad, by the ordinary statistics, before the search; None for failures."""
    failed: tuple[tuple[int, int], tuple[int, int]] | None = None
    """For failures: failed and all runs of good, and of bad."""
    skipped: tuple[Skipped, ...] = ()
    signature: tuple[str, ...] | None = None
    """Quantities in which the signatures of the culprit and of the revision before it differ; None if they are
    not known."""
    rounds: int
    disturbed: int = 0
    """Rounds in which something else on the machine disturbed a run."""
    elapsed_s: float

    @property
    def found(self) -> bool:
        """Whether a culprit is named, or several changes."""
        return self.ending in {"culprit", "several"}


class SearchFolder:
    """The folder of one search: reads the state, and appends to it durably."""

    def __init__(self, folder: Path) -> None:
        """Use `open_folder` instead."""
        self.folder = folder
        self.state = State()
        paths = sorted(folder.glob("records-*.jsonl"))
        for path in paths:
            for number, record in read_records(path):
                self.state.add(_decode(record, f"{path}, line {number}"))
        self._file = RecordFile(folder / f"records-{len(paths) + 1:03d}.jsonl")

    def append(self, record: Record) -> None:
        """Store a record; when this returns, it is on disk."""
        self._file.append({"kind": _NAMES[type(record)], **encode(record)})
        self._file.sync()
        self.state.add(record)

    def worktree(self, commit: str) -> Path:
        """Return the folder of the checkout of a revision."""
        return self.folder / "worktrees" / commit

    def log(self, commit: str, name: str) -> Path:
        """Return the path of a log of a revision."""
        return self.folder / "logs" / f"{commit}.{name}"

    def close(self) -> None:
        """Close the file of records, and delete it if nothing was recorded."""
        if not self._file.records:
            self._file.path.unlink(missing_ok=True)
        self._file.close()


@contextmanager
def open_folder(folder: Path, request: Request) -> Iterator[SearchFolder]:
    """Create the folder of a search, or open it to resume; one process at a time."""
    folder = folder.absolute()
    path = folder / "request.json"
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_error(folder, error, kept="existing data") from error
    try:
        _lock(descriptor, folder)
        if path.exists():
            if read_request(folder) != request:
                raise UsageError(
                    f"{folder} belongs to another search",
                    why="what is searched, the command, the setup or the metric differ",
                    hint="use another --folder",
                )
        else:
            replace_json(path, encode(request))
        search_folder = SearchFolder(folder)
        try:
            yield search_folder
        finally:
            search_folder.close()
    finally:
        os.close(descriptor)


def read_request(folder: Path) -> Request:
    """Read the request of a search."""
    path = folder / "request.json"
    return decode(Request, read_json(path), where=str(path), strict=False)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"another process works on this search in {folder}", hint="wait until it has ended"
        ) from error


def _decode(record: dict[str, Any], where: str) -> Record:
    kind = _KINDS.get(str(record.pop("kind", "")))
    if kind is None:
        raise ResultsDamaged(f"{where}: unknown kind of record", hint="use another --folder")
    return decode(kind, record, where=where, strict=False)

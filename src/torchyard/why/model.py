"""Records of an attribution: measured rounds, groups of source operators, and their contributions.

They are stored in the folder of the run that they explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from torchyard.core.records import decode, encode
from torchyard.core.study import Workload
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, order=True)
class Source:
    """A source operator: phase, module, line and operator; the same in eager and compiled code."""

    phase: str
    module: str
    kind: str
    """Class name of the module."""
    file: str
    line: int
    text: str
    """Source text of the line."""
    operator: str

    @classmethod
    def of(cls, fields: list[Any]) -> Source:
        """Return the source operator of a worker's answer."""
        names = ("phase", "module", "kind", "file", "line", "text", "operator")
        return cls(**dict(zip(names, fields, strict=True)))


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """Time of an operator or kernel in one iteration; on a GPU the time of its kernels there."""

    name: str
    sources: tuple[Source, ...]
    duration_ns: float
    calls: float
    nested: float = 0.0
    """Events that the profiler recorded inside; recording them is part of the duration."""
    moved_bytes: float = 0.0
    """Bytes that one call of a generated kernel moves; 0 if unknown."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSide:
    """One variant in one round: a timed block and an instrumented one."""

    plain_ns: float
    """Time of an iteration without the profiler."""
    instrumented_ns: float
    """Time of an iteration with the profiler."""
    events: float
    """Events that the profiler recorded per iteration."""
    rows: tuple[OperatorRow, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredRound:
    """Both variants, measured one after the other in random order."""

    launch: int
    baseline: MeasuredSide
    candidate: MeasuredSide
    disturbed: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """Arithmetic and memory traffic per iteration."""

    flops: float
    moved_bytes: float
    """Inputs and outputs of each operator; of a generated kernel, what it does not keep inside."""
    share: float | None = None
    """Share of the roofline bound that was reached; None without a measured peak."""
    bound: str = ""
    """What limits it: `arithmetic`, `memory` or `cache`."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An operator or kernel of a group, on one side."""

    name: str
    calls: float
    duration_ns: float


PartKind = Literal["operators", "host", "idle", "unattributed", "profiler"]
"""`host` is host time outside of operators, `idle` the time in which the GPU has no work."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The contribution of a group of source operators, or of what remains."""

    kind: PartKind
    name: str
    baseline_ns: float
    candidate_ns: float
    low_ns: float
    high_ns: float
    """Confidence interval of candidate minus baseline."""
    p_value: float
    adjusted_p: float
    """Corrected for the number of parts (Benjamini-Hochberg)."""
    named: bool
    """Whether the contribution is significant and not negligible."""
    sources: tuple[Source, ...] = ()
    baseline_kernels: tuple[Kernel, ...] = ()
    candidate_kernels: tuple[Kernel, ...] = ()
    baseline_work: Work | None = None
    candidate_work: Work | None = None

    @property
    def difference_ns(self) -> float:
        """Candidate minus baseline."""
        return self.candidate_ns - self.baseline_ns


@dataclass(frozen=True, kw_only=True)
class MemorySite:
    """Bytes that a part holds when the memory of an iteration is largest."""

    name: str
    sources: tuple[Source, ...]
    baseline_bytes: int
    candidate_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Candidate minus baseline."""
        return self.candidate_bytes - self.baseline_bytes


@dataclass(frozen=True, kw_only=True)
class SoftwareDifference:
    """A fact about the software of the two sides that differs."""

    group: str
    """Where it comes from: `build record`, `torch` or `library`."""
    name: str
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What one decision of the compiler is worth."""

    change: str
    option: str
    """Option of a variant that makes the change."""
    verdict: str
    """Changed against unchanged candidate: faster, slower, same, ..."""
    effect: float | None = None
    """Speedup of the changed over the unchanged candidate."""
    low: float | None = None
    high: float | None = None
    speedup: float | None = None
    """Speedup of the changed candidate over the baseline."""
    unchanged_speedup: float | None = None
    confirmed: bool | None = None
    """Whether a second comparison found the change faster too; None where there was none."""
    why_not: str = ""

    @property
    def decided(self) -> bool:
        """Whether the change makes a difference."""
        return self.verdict in {"faster", "slower"}

    @property
    def effect_text(self) -> str:
        """The effect with its confidence interval."""
        if self.effect is None:
            return self.why_not
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.effect:.2f}x{interval}"

    @property
    def speedup_text(self) -> str:
        """The speedup with the change, instead of the one without it."""
        if self.speedup is None or self.unchanged_speedup is None:
            return ""
        return f"{self.speedup:.2f}x instead of {self.unchanged_speedup:.2f}x"


@dataclass(frozen=True, kw_only=True)
class CompilePhase:
    """Compile time of one phase: a single reading, with empty caches. None: the side has no such phase."""

    name: str
    baseline_s: float | None = None
    candidate_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Why two variants differ: the parts sum to the difference of the iteration times."""

    workload: Workload
    baseline: str
    candidate: str
    launches: int
    rounds: int
    rounds_dropped: int
    baseline_ns: float
    candidate_ns: float
    low_ns: float
    high_ns: float
    """Confidence interval of the difference of the iteration times, without the profiler."""
    parts: tuple[Part, ...]
    """Sorted by the size of the contribution."""
    baseline_overhead: float
    candidate_overhead: float
    """Slowdown by the profiler."""
    facts: tuple[str, ...] = ()
    """What the compiler did: graphs, graph breaks, library calls, recompilations."""
    notes: tuple[str, ...] = ()
    untrusted: str = ""
    """Why the result must not be used; no part is named then."""
    ablations: tuple[Ablation, ...] = ()
    """Decisions of the compiler, changed one at a time."""
    compile_phases: tuple[CompilePhase, ...] = ()
    """In the order of execution; empty if no side is compiled."""
    code: tuple[tuple[str, str], ...] = ()
    """Name and generated code of the candidate's kernels with the largest loss, largest first."""
    memory: tuple[MemorySite, ...] = ()
    """Sites of both sides, each at its own peak: a single reading, largest difference first."""
    peak_command: str = ""
    """Command that measures the peak of this machine; empty if it is stored."""
    software: tuple[SoftwareDifference, ...] = ()
    """Empty if both sides run in the same process."""
    links: tuple[str, ...] = ()
    """Named parts with the libraries that serve or may serve their operators, where those differ."""
    format: int = FORMAT_VERSION

    @property
    def difference_ns(self) -> float:
        """Candidate minus baseline."""
        return self.candidate_ns - self.baseline_ns


FOLDER: Final = "why"


def save(result: Attribution, run: Path, row: int) -> Path:
    """Write the attribution of a row; an earlier one of the same row is replaced."""
    path = run / FOLDER / f"row-{row}.json"
    path.parent.mkdir(exist_ok=True)
    replace_json(path, encode(result))
    return path


def new_ablation_folder(run: Path, row: int) -> Path:
    """Return a new folder for the comparisons with one decision changed."""
    for number in count(1):
        folder = run / FOLDER / f"row-{row}-compiler-{number}"
        if not folder.exists():
            return folder
    raise AssertionError


def load(path: Path) -> Attribution:
    """Read an attribution."""
    return decode(Attribution, read_json(path), where=str(path), strict=False)

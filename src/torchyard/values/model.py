"""Findings about values: wasted work, its certainty, the worth of a fix; and the profile file.

The worker writes these records as JSON (`worker/values/profiling_session.py`); the controller
reads, confirms, prices and shows them. A profile folder holds `profile.json` (complete, all that a
report needs) beside the files that the runs wrote. `ProfileRequest` is what a user asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from torchyard.core.comparison import Interval
from torchyard.core.study import DEFAULT_ENVIRONMENT, Environment, Target, Workload
from torchyard.errors import UsageError
from torchyard.results.directory import (
    find_profile_file,
    home_folder,
    new_output_folder,
    read_profile_file,
    write_profile_file,
)

SEMANTICS: Final = "semantics"
"""The test that a proof needs (`worker/values/proofs/certainty.py`)."""


class Certainty(StrEnum):
    """Certainty of a finding, highest first."""

    PROVEN = "proven"
    """For every call, omitting the work cannot change a result for any input of these shapes, according
    to the definitions of the operators and the source of the program. The program also does the work
    without value profiling."""
    TESTED = "tested"
    """With the work omitted or poisoned, all results were bitwise equal in every trial, on several
    inputs. Other inputs, and what the program does with them between operators, were not tested."""
    LIKELY = "likely"
    """Observed every time, but not tested, or only on one input."""
    INPUT_DEPENDENT = "input-dependent"
    """Holds for these inputs; another input needed the work."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Location in the user's program."""

    file: str
    line: int
    function: str = ""
    module: str = ""
    """Path of the innermost nn.Module."""
    backward: bool = False
    """Called by the backward of the operator at this place."""


@dataclass(frozen=True, kw_only=True)
class ProofTest:
    """One test of a finding."""

    test: str
    """poison, skip, native, ..."""
    passed: bool
    inputs: str = ""
    """`the program's own`, `random`, ..."""
    poison: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Certainty of a finding and its tests."""

    certainty: Certainty = Certainty.LIKELY
    why: str = ""
    tests: tuple[ProofTest, ...] = ()

    def by_current_rules(self) -> Proof:
        """Return the proof without a `proven` of earlier versions, which meant that all trials passed."""
        if self.certainty is not Certainty.PROVEN or any(
            test.test == SEMANTICS for test in self.tests
        ):
            return self
        return replace(self, certainty=Certainty.TESTED)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Saving of a fix per step: an estimated range and an upper bound."""

    low_ns: float
    """Operators that the fix certainly removes: lower quartile of the repeats."""
    high_ns: float
    """All operators that the fix concerns: upper quartile of the repeats."""
    low_share: float
    high_share: float
    bound_ns: float | None = None
    """With the slowest calls and the Python overhead of every call; None if unknown."""
    bound_share: float | None = None
    clock: str = ""
    """What the shares refer to: `CPU time`, `wall time`, or both."""
    calls: float = 0.0
    """Operator calls per step that the fix concerns."""
    unpriced: tuple[str, ...] = ()
    """Operators of the chain that were not timed: the range and the bound do not cover them."""


@dataclass(frozen=True, kw_only=True)
class FixMeasurement:
    """The program with a fix applied, compared with the program without it."""

    fix: str
    """What was changed."""
    confirmed: bool = False
    """Whether the saving was measured and the results of both were equal."""
    why: str = ""
    """Why it is not confirmed."""
    share: float | None = None
    """Of the time of a step, or of a program without steps; negative if the fix is slower."""
    interval: Interval | None = None
    clock: str = ""
    pairs: int = 0
    launches: int = 0
    applied: int = 0
    """Calls that the fix changed in one run."""
    compared: tuple[str, ...] = ()
    """Kinds of results that were compared."""
    rounded: str = ""
    """How far results differ by rounding; empty if every bit is equal."""
    exceeded_bound: float | None = None
    """The estimated upper bound, if the measured saving exceeds it."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Cost of a finding and saving of its fix. None means not measured."""

    operator_ns: float | None = None
    """One native call of the operator."""
    wasted_ns: float | None = None
    """Its wasted part, measured natively on the same bytes."""
    per_step_ns: float | None = None
    """The middle of the estimated saving per step."""
    share_of_step: float | None = None
    saving: Saving | None = None
    """None in profiles of older versions, and where nothing could be measured."""
    gain: float | None = None
    """Speedup of the operator with the fix simulated, by paired measurement."""
    gain_interval: Interval | None = None
    measured: FixMeasurement | None = None
    """Of the largest findings, where a fix could be applied to the program."""
    method: str = ""
    unavailable: str = ""
    """Why something above was not measured."""


@dataclass(frozen=True, kw_only=True)
class FindingInProcess:
    """The part of a finding that one process observed."""

    process: int
    """Index in the list of processes of the profile."""
    count: int = 0
    steps: int = 0
    bytes_wasted: int = 0
    bytes_written: int = 0
    certainty: Certainty = Certainty.LIKELY
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ValueFinding:
    """One cause of wasted work."""

    pattern: str
    operator: str
    place: Place
    path: tuple[str, ...] = ()
    """Enclosing operators, outermost first."""
    overload: str = ""
    modules: dict[str, int] = field(default_factory=dict)
    count: int = 0
    steps: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bytes_wasted: int = 0
    bytes_written: int = 0
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    proof: Proof = field(default_factory=Proof)
    worth: Worth = field(default_factory=Worth)
    recipe: dict[str, Any] = field(default_factory=dict)
    """The operator and its wasted part without values, for pricing (`worker/values/pricing/recipes.py`)."""
    node: int = -1
    suggestion: str = ""
    processes: tuple[FindingInProcess, ...] = ()
    """Where it occurs, if several processes were profiled; counts and bytes above are the sums."""
    contradicted_by: tuple[int, ...] = ()
    """Processes that run the same operator at the same line without this finding."""


@dataclass(frozen=True, kw_only=True)
class FlowNode:
    """An operator at a source location."""

    id: int
    operator: str
    place: Place
    path: tuple[str, ...] = ()
    calls: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class FlowEdge:
    """Data from its last writer to a reader; `writer` -1 is memory from outside."""

    writer: int
    reader: int
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class FlowGraph:
    """Data flow between operators."""

    nodes: tuple[FlowNode, ...] = ()
    edges: tuple[FlowEdge, ...] = ()
    classes: dict[str, str] = field(default_factory=dict)
    """Class names of modules, by their path."""


@dataclass(frozen=True, kw_only=True)
class SourceExcerpt:
    """Lines of a source file as they were when the program ran."""

    file: str
    first_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProfiledProcess:
    """One process of the program."""

    kind: Literal["main", "rank", "loader", "child", "fork"]
    state: Literal["finished", "crashed", "interrupted", "killed", "running", "missing"]
    """killed: it ended without a last result. missing: it was started and wrote nothing."""
    name: str = ""
    pid: int = 0
    exit_code: int | None = None
    rank: int | None = None
    worker: int | None = None
    """Number of a DataLoader worker."""
    torch: bool = True
    """Whether it imported torch."""
    profiled: bool = True
    """Whether its result was read."""
    steps: int = 0
    operators: int = 0
    written_bytes: int = 0

    @property
    def reported(self) -> bool:
        """Whether it ended with a complete result, or had nothing to report."""
        return self.state in ("finished", "crashed", "interrupted") and (
            self.profiled or not self.torch
        )


@dataclass(frozen=True, kw_only=True)
class ValueProfile:
    """Everything about one profiled program."""

    format: int
    state: Literal["running", "finished", "interrupted", "crashed"]
    torch: str
    program: tuple[str, ...] = ()
    exit_code: int | None = None
    threads: int = 0
    device: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    step_ns: float | None = None
    """Wall time of a step without the profiler."""
    step_cpu_ns: float | None = None
    saving: Saving | None = None
    """Saving of fixing every priced finding; calls that findings share count once."""
    counts: dict[str, int] = field(default_factory=dict)
    findings: tuple[ValueFinding, ...] = ()
    findings_left_out: int = 0
    """Occurrences beyond the maximum number of causes."""
    flow: FlowGraph = field(default_factory=FlowGraph)
    excerpts: tuple[SourceExcerpt, ...] = ()
    """Source around the places of findings and of the flow graph."""
    notes: tuple[str, ...] = ()
    compiled: bool = False
    """Whether the program compiles functions, which recompile when a mode is toggled."""
    processes: tuple[ProfiledProcess, ...] = ()
    """All processes, the main one first; empty if the program has only one. Counts are sums over them; steps are those
    of the process with the most steps."""


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions:
    """Options of value profiling; the fields of the worker's `Options`."""

    deep: bool = False
    every: int = 1
    first_steps: int = 0
    close_steps: int = 3
    last_step: int = 0
    least_bytes: int = 4096
    most_bytes: int = 0
    memory_bytes: int = 256 << 20
    device_memory_bytes: int = 4 << 30
    prove: bool = True
    graph: bool = True
    approximate: bool = False


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """A program, or a workload of a suite, in a target."""

    target: Target
    environment: Environment = DEFAULT_ENVIRONMENT
    program: tuple[str, ...] = ()
    """`SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`; empty for a workload."""
    workload: Workload | None = None
    steps: int = 4
    """Of a workload."""
    precision: str = "float32"
    eager: bool = False
    """Disable torch.compile, and profile the eager program."""
    options: ProfilingOptions = field(default_factory=ProfilingOptions)
    ranks: int = 1
    """Number of processes of the program, with the variables of a process group."""
    quiet_program: bool = False
    """Redirect the program's stdout to stderr, so that stdout holds only the report."""


FORMAT: Final = 1
PROFILE_FILE: Final = "profile.json"


def profiles_home() -> Path:
    """Return the default folder of profiles."""
    return home_folder() / "values"


def new_profile_folder(folder: Path | None = None) -> Path:
    """Return an empty folder for a profile: the given one, or a new one in the results directory."""
    return new_output_folder(folder, home=profiles_home())


def write_profile(folder: Path, profile: ValueProfile) -> Path:
    """Write a profile atomically; return its file."""
    return write_profile_file(folder / PROFILE_FILE, profile)


def find_profile(text: str) -> Path:
    """Return the file of a profile: `latest`, a folder, or the file itself."""
    none_yet = UsageError("there is no profile yet", hint="make one with `torchyard values SCRIPT`")
    return find_profile_file(text, home=profiles_home(), file_name=PROFILE_FILE, none_yet=none_yet)


def read_profile(path: Path) -> ValueProfile:
    """Read a stored profile, or the file of the worker of a program that may have been interrupted."""
    profile = read_profile_file(ValueProfile, path, newest=FORMAT)
    findings = tuple(
        replace(finding, proof=finding.proof.by_current_rules()) for finding in profile.findings
    )
    return replace(profile, findings=findings)

"""The study file: its keys, and the strict reader that turns it into a `Request`.

The dataclasses are the complete definition: `docs/reference/study-file.md` is generated from them.
Unknown keys and wrong values are errors that name the file, the key and the fix. Paths in a study
file are relative to the file. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from torchyard.bench.request import Request, Scalar, SpecText, WorkloadChoice
from torchyard.bench.variant_text import check_cores, check_memory
from torchyard.bench.workload_text import check_suite, choose_workload, located
from torchyard.core.number_checks import CHECKS, Check
from torchyard.core.records import decode
from torchyard.core.study import Environment, Mode, Precision, Reseat, Target
from torchyard.core.toml_file import read_toml
from torchyard.core.variant_parts import check_name, find_python
from torchyard.errors import UsageError
from torchyard.results.gate.model import GateTable

__all__ = [
    "BudgetTable",
    "EnvironmentTable",
    "SettingsTable",
    "StudyFile",
    "SweepTable",
    "TargetTable",
    "WorkloadTable",
    "located_errors",
    "read_study_file",
    "read_study_tables",
    "request_of_tables",
]

T = TypeVar("T")
Quantity = str | int | float
"""A number with its unit as text, or a plain number in the unit that the key names."""


@dataclass(frozen=True, kw_only=True)
class TargetTable:
    """An interpreter with a torch in it."""

    python: str
    """Path of a python, folder of a virtual environment, or a command on PATH."""
    variables: dict[str, str | int | float] = field(default_factory=dict)
    """Environment variables that belong to this interpreter."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentTable:
    """What a process is started with besides its target."""

    variables: dict[str, str | int | float] = field(default_factory=dict)
    """Environment variables, such as `MALLOC_CONF`."""
    preload: tuple[str, ...] = ()
    """Shared libraries to load first; a bare name such as `libtcmalloc.so.4` is left to the loader."""
    threads: int | None = None
    """Threads of torch; without it, `settings.threads`."""
    cores: str = ""
    """Processors that it may use, such as `"0-3,8"`."""
    memory: str = ""
    """NUMA nodes that its memory comes from: `"bind:0"`, or `"interleave:0-1"`."""
    instances: int | None = None
    """Processes that do the same side by side, each with its part of the cores; 1 when left out, at most
    four for each core. The time of an iteration is then the time in which all of them together do one."""


@dataclass(frozen=True, kw_only=True)
class WorkloadTable:
    """One workload, or a whole suite when it has no name."""

    suite: str = ""
    """`kernels`, `models`, `huggingface`, `timm`, `torchvision`, `torchbench` or `file`; may be left
    out when the name tells."""
    name: str = ""
    """Name in the suite, or the path of a Python file (`mine.py`, `mine.py:thing`)."""
    mode: tuple[Mode, ...] = ()
    """`"inference"` (when left out), `"training"`, or a list of both."""
    batch_size: int | None = None
    """Without it, the workload's own."""
    device: str | None = None
    """`cpu` (when left out), `cuda`, `cuda:1`, ..."""
    optimizer_step: bool | None = None
    """Whether a training iteration includes the optimiser's step."""
    parameters: dict[str, int | float | str | bool] = field(default_factory=dict)
    """What the workload understands, such as `size = 500`."""


@dataclass(frozen=True, kw_only=True)
class BudgetTable:
    """When a comparison may stop."""

    time: Quantity | None = None
    """Measuring time of one workload, shared by its candidates, such as `"60s"` or `"5m"`; a plain number is seconds."""
    precision_goal: Quantity | None = None
    """Half-width of the interval that is wanted, such as `"1%"`; 0 uses the whole time."""
    margin: Quantity | None = None
    """Differences proven smaller than this are called the same, such as `"1%"`."""
    alpha: float | None = None
    """Chance of a wrong verdict that is accepted; 0.05 gives intervals of 95 %."""
    min_launches: int | None = None
    """Launches before the first verdict."""
    max_launches: int | None = None
    """Launches at most."""


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """How blocks are taken and what a worker may use."""

    block: Quantity | None = None
    """Length of a block, such as `"100ms"`; a plain number is seconds."""
    threads: int | None = None
    """Threads of torch in every worker; without it, one for each core it may use."""
    seed: int | None = None
    """Seed of inputs, weights and the order of pairs."""
    reseat: Reseat | None = None
    """How data is moved to fresh memory between blocks."""
    paired_layout: bool | None = None
    """Start both sides of a launch with one memory layout, drawn anew for each launch."""
    flush_l2: bool | None = None
    """Flush the L2 cache of the GPU, or the caches of the CPU, before each iteration."""
    check_accuracy: bool | None = None
    """Compare results against the baseline and a float64 reference."""
    memory_limit: Quantity | None = None
    """Memory of one worker, such as `"8GiB"`; a plain number is bytes."""
    start_limit: Quantity | None = None
    """For the import of torch and the handshake."""
    step_limit: Quantity | None = None
    """For building, checking, compiling and warming up."""
    block_limit: Quantity | None = None
    """For one block."""


@dataclass(frozen=True, kw_only=True)
class SweepTable:
    """Whole suites times modes, precisions and backends, for `torchyard sweep`; `bench` skips it."""

    suites: tuple[str, ...] = ()
    """Suites to run whole, besides what `[[workloads]]` names."""
    modes: tuple[Mode, ...] = ()
    """For suites, and for workloads that name no mode; inference when left out."""
    precisions: tuple[Precision, ...] = ()
    """One cell of each workload for each; baseline and candidates have the same. Without it, the study's `precision`."""
    backends: tuple[str, ...] = ()
    """The candidates of every cell; without it, the study's `candidates`, else `inductor`."""
    only: tuple[str, ...] = ()
    """Patterns of workloads to keep, such as `"timm/resnet*"`."""
    exclude: tuple[str, ...] = ()
    """Patterns of workloads to leave out."""
    cell_limit: Quantity | None = None
    """Wall time of one try at a cell, such as `"30m"`; without it, only the limits of `[settings]`."""
    tries: int | None = None
    """How often a cell is tried at most whose process dies or hangs; 2 when left out."""
    batch_size: Literal["largest"] | None = None
    """`"largest"`: of each workload that names none, the largest that fits is searched for first."""
    null: bool | None = None
    """Every candidate is the baseline again, to see how often this machine gives a false alarm."""
    executor: Literal["local", "slurm"] | None = None
    """`local` (when left out) or `slurm`."""
    at_most: int | None = None
    """Cells under way at once; of Slurm, jobs. On one machine 1 when left out: more of them start,
    compile and check side by side, and are timed one at a time."""
    partition: str | None = None
    """Of Slurm, as are the next ones: where jobs go."""
    account: str | None = None
    """Who pays."""
    qos: str | None = None
    """Quality of service."""
    gpus: int | str | None = None
    """GPUs of a job: a number, or `"h200:1"`."""
    cpus: int | None = None
    """Processors of a job."""
    job_memory: str | None = None
    """Memory of a job, such as `"16G"`."""
    exclusive: bool | None = None
    """Whether a job has its node to itself."""
    job_time: str | None = None
    """Time limit of a job, such as `"2h"` or `"02:30:00"`."""
    slurm: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Other options of sbatch by name, such as `constraint = "h200"`."""


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study: what to compare on which workloads, how exactly, in how much time."""

    name: str = ""
    """What the run is called; without it, the file's own name."""
    baseline: str = ""
    """The variant that others are compared with: parts joined by `+`."""
    candidates: tuple[str, ...] = ()
    """The variants to compare with the baseline."""
    precision: Precision | None = None
    """Precision of every variant that names none."""
    targets: dict[str, TargetTable] = field(default_factory=dict)
    """Interpreters by name."""
    environments: dict[str, EnvironmentTable] = field(default_factory=dict)
    """Environments by name."""
    workloads: tuple[WorkloadTable, ...] = ()
    """What to run."""
    budget: BudgetTable = field(default_factory=BudgetTable)
    settings: SettingsTable = field(default_factory=SettingsTable)
    gate: GateTable = field(default_factory=GateTable)
    sweep: SweepTable = field(default_factory=SweepTable)


def read_study_file(path: Path) -> Request:
    """The request of a study file; raises UsageError that starts with the file's name."""
    said = read_study_tables(path)
    return located_errors(path, lambda: request_of_tables(said, path))


def read_study_tables(path: Path) -> StudyFile:
    """Return the tables of a study file, checked against the dataclasses above."""
    raw = _load(path)
    for table in raw["workloads"] if isinstance(raw.get("workloads"), list) else ():
        # One mode may be written without brackets.
        if isinstance(table, dict) and isinstance(table.get("mode"), str):
            table["mode"] = [table["mode"]]
    return located_errors(path, lambda: decode(StudyFile, raw, where=""))


def _load(path: Path) -> dict[str, Any]:
    return read_toml(path, what="study file")


def located_errors(path: Path, work: Callable[[], T]) -> T:
    """Return what `work` returns; start a UsageError of it with the name of the file."""
    try:
        return work()
    except UsageError as error:
        what = error.what.removeprefix(f"{path}: ")
        raise UsageError(f"{path}: {what}", why=error.why, hint=error.hint) from error


def request_of_tables(said: StudyFile, path: Path) -> Request:
    """Return the request that the tables of a study file make."""
    folder = path.resolve().parent
    return Request(
        name=said.name or path.stem,
        targets={name: _target(name, table, folder) for name, table in said.targets.items()},
        environments={
            name: _environment(name, table, folder) for name, table in said.environments.items()
        },
        baseline=SpecText(text=said.baseline, where=f"{path}: baseline", folder=folder)
        if said.baseline
        else None,
        candidates=tuple(
            SpecText(text=text, where=f"{path}: candidates[{index}]", folder=folder)
            for index, text in enumerate(said.candidates)
        ),
        precision=said.precision,
        workloads=tuple(
            _workload(table, f"workloads[{index}]", folder, path)
            for index, table in enumerate(said.workloads)
        ),
        budget=_checked(said.budget, "budget"),
        settings=_checked(said.settings, "settings"),
    )


def _target(name: str, table: TargetTable, folder: Path) -> Target:
    where = f"targets.{name}"
    check_name(name, where=where)
    return Target(
        name=name,
        python=find_python(table.python, folder=folder, where=f"{where}.python"),
        variables=tuple((key, str(value)) for key, value in table.variables.items()),
    )


def _environment(name: str, table: EnvironmentTable, folder: Path) -> Environment:
    where = f"environments.{name}"
    check_name(name, where=where)
    threads = table.threads
    if threads is not None:
        threads = CHECKS["threads"].read(threads, where=f"{where}.threads")
    instances = 1
    if table.instances is not None:
        instances = CHECKS["instances"].read(table.instances, where=f"{where}.instances")
    return Environment(
        name=name,
        cores=check_cores(table.cores, where=f"{where}.cores"),
        memory=check_memory(table.memory, where=f"{where}.memory"),
        instances=instances,
        variables=tuple((key, str(value)) for key, value in table.variables.items()),
        preload=tuple(
            library if "/" not in library else str(folder / Path(library).expanduser())
            for library in table.preload
        ),
        threads=threads,
    )


def _workload(table: WorkloadTable, where: str, folder: Path, path: Path) -> WorkloadChoice:
    if not table.suite and not table.name:
        raise UsageError(f"{where}: names neither a suite nor a workload", hint="add name = ...")
    if table.suite:
        check_suite(table.suite, where=f"{where}.suite")
    parameters: tuple[tuple[str, Scalar], ...] = tuple(table.parameters.items())
    suite, name = table.suite, ""
    if table.name:
        text = f"{suite}/{table.name}" if suite else table.name
        spec = SpecText(text=text, where=f"{where}.name", folder=folder)
        chosen = choose_workload(spec)
        suite, name = chosen.suite, chosen.name
        parameters = chosen.parameters + located(suite, parameters, folder=folder)
    batch_size = table.batch_size
    if batch_size is not None:
        batch_size = CHECKS["batch_size"].read(batch_size, where=f"{where}.batch-size")
    return WorkloadChoice(
        where=f"{path}: {where}",
        suite=suite,
        name=name,
        modes=table.mode,
        device=table.device,
        batch_size=batch_size,
        optimizer_step=table.optimizer_step,
        parameters=parameters,
    )


def _checked(table: BudgetTable | SettingsTable, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in vars(table).items():
        if value is None:
            continue
        check: Check | None = CHECKS.get(key)
        if check is None:
            found[key] = value
        else:
            place = f"{where}.{key.replace('_', '-')}"
            found[check.field_name] = check.read(value, where=place)
    return found

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
from torchyard.core.number_checks import CHECKS
from torchyard.core.records import decode
from torchyard.core.study import (
    Environment,
    ModeName,
    Precision,
    RelocationMethod,
    StartMethod,
    Target,
    modes_named,
)
from torchyard.core.toml_file import read_toml
from torchyard.core.variant_parts import check_name, find_python
from torchyard.errors import UsageError
from torchyard.results.gate.model import GateTable

T = TypeVar("T")
Quantity = str | int | float
"""A number with its unit as text, or a plain number in the default unit of the key."""


@dataclass(frozen=True, kw_only=True)
class TargetTable:
    """An interpreter with torch."""

    python: str
    """As `--target` of [torchyard bench](commands.md#torchyard-bench)."""
    variables: dict[str, str | int | float] = field(default_factory=dict)
    """Environment variables of this interpreter."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentTable:
    """Process settings besides the target: variables, libraries, threads and placement."""

    variables: dict[str, str | int | float] = field(default_factory=dict)
    """Environment variables, such as `MALLOC_CONF`."""
    preload: tuple[str, ...] = ()
    """Shared libraries to preload; a bare name such as `libtcmalloc.so.4` is resolved by the loader."""
    threads: int | None = None
    """PyTorch threads [default: `settings.threads`]."""
    cores: str = ""
    """Cores that the process may use, such as `"0-3,8"`."""
    memory: str = ""
    """NUMA policy of its memory: `"bind:0"` or `"interleave:0-1"`."""
    instances: int | None = None
    """Parallel processes that run the same workload, each on its share of the cores [default: 1]; at most four per core. The time of an iteration is that in which all together complete one."""


@dataclass(frozen=True, kw_only=True)
class WorkloadTable:
    """One workload, or a whole suite if no name is given."""

    suite: str = ""
    """`kernels`, `models`, `huggingface`, `timm`, `torchvision`, `torchbench` or `file`; optional if
    the name is unambiguous."""
    name: str = ""
    """Name in the suite, or the path of a Python file (`mine.py`, `mine.py:thing`)."""
    mode: tuple[ModeName, ...] = ()
    """`"inference"`, `"training"`, `"generate"` (`"prefill"` and `"decode"`), or a list of them
    [default: `"inference"`]."""
    batch_size: int | None = None
    """Batch size [default: the workload's own]."""
    device: str | None = None
    """`cpu`, `cuda`, `cuda:1`, ... [default: `cpu`]."""
    optimizer_step: bool | None = None
    """Whether a training iteration includes the optimizer step."""
    eval_mode: bool | None = None
    """Whether modules are in evaluation mode during training."""
    ranks: int | None = None
    """Processes of one process group, each with its own batch; the slowest one counts [default: 1]."""
    nodes: int | None = None
    """Nodes of the Slurm allocation that the ranks are spread over [default: 1]."""
    parameters: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Parameters of the workload, such as `size = 500`."""


@dataclass(frozen=True, kw_only=True)
class BudgetTable:
    """When measuring stops."""

    time: Quantity | None = None
    """Measuring time of one workload, shared by its candidates, such as `"60s"` or `"5m"`; a plain number is seconds."""
    precision_goal: Quantity | None = None
    """Target half-width of the confidence interval, such as `"1%"`; 0 uses the whole time."""
    margin: Quantity | None = None
    """Differences shown to be smaller than this count as the same, such as `"1%"`."""
    alpha: float | None = None
    """Significance level; 0.05 gives 95 % confidence intervals."""
    min_launches: int | None = None
    """Minimum number of launches before a verdict."""
    max_launches: int | None = None
    """Maximum number of launches."""


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """How blocks are measured, and limits of workers."""

    block: Quantity | None = None
    """Length of a block, such as `"100ms"`; a plain number is seconds."""
    threads: int | None = None
    """PyTorch threads in every worker [default: one per core it may use]."""
    seed: int | None = None
    """Seed of inputs, weights and the order of pairs."""
    reseat: RelocationMethod | None = None
    """How data is relocated in memory between blocks."""
    paired_layout: bool | None = None
    """Start all variants of a launch with the same memory layout, drawn at random for each launch."""
    start: StartMethod | None = None
    """How processes start: `fork` from a template process that has imported torch, `fresh`, or `auto`: fork if all variants share a process and it is safe."""
    flush_l2: bool | None = None
    """Flush the L2 cache of the GPU, or the caches of the CPU, before each iteration."""
    check_accuracy: bool | None = None
    """Compare results with the baseline and a float64 reference."""
    memory_limit: Quantity | None = None
    """Memory limit of one worker, such as `"8GiB"`; a plain number is bytes."""
    start_limit: Quantity | None = None
    """Time limit of importing torch and of the handshake."""
    step_limit: Quantity | None = None
    """Time limit of building, checking, compiling and warming up."""
    block_limit: Quantity | None = None
    """Time limit of one block."""


@dataclass(frozen=True, kw_only=True)
class SweepTable:
    """Suites times modes, precisions and backends, for `torchyard sweep`; ignored by `bench`."""

    suites: tuple[str, ...] = ()
    """Suites to run in full, in addition to `[[workloads]]`."""
    modes: tuple[ModeName, ...] = ()
    """Modes of suites, and of workloads that name none [default: inference]."""
    precisions: tuple[Precision, ...] = ()
    """One cell of each workload per precision, which baseline and candidates share [default: the study's `precision`]."""
    backends: tuple[str, ...] = ()
    """The candidates of every cell [default: the study's `candidates`, else `inductor`]."""
    only: tuple[str, ...] = ()
    """Patterns of workloads to keep, such as `"timm/resnet*"`."""
    exclude: tuple[str, ...] = ()
    """Patterns of workloads to exclude."""
    cell_limit: Quantity | None = None
    """Wall time of one attempt at a cell, such as `"30m"` [default: only the limits of `[settings]`]."""
    budget: Quantity | None = None
    """Wall time of the whole sweep on this machine, such as `"30m"` [default: until every cell is decided]."""
    tries: int | None = None
    """Maximum number of attempts at a cell whose process dies or hangs [default: 2]."""
    batch_size: Literal["largest"] | None = None
    """`"largest"`: search for the largest that fits, for each workload that names none."""
    null: bool | None = None
    """Use the baseline as every candidate, to measure the false alarm rate of this machine."""
    executor: Literal["local", "slurm"] | None = None
    """`local` or `slurm` [default: `local`]."""
    at_most: int | None = None
    """Maximum number of concurrent cells, or of Slurm jobs. On one machine, cells start, compile and
    check in parallel but are timed one at a time [default: 1]."""
    reserve_cores: int | None = None
    """CPUs reserved for the timed cell if several run on one machine; 0 pauses the others instead
    [default: up to 4 for cells on a GPU if enough remain, else 0]."""
    partition: str | None = None
    """Slurm partition; this and the following keys apply to Slurm."""
    account: str | None = None
    """Slurm account."""
    qos: str | None = None
    """Slurm quality of service."""
    gpus: int | str | None = None
    """GPUs per job: a number, or `"h200:1"`."""
    cpus: int | None = None
    """CPUs per job."""
    job_memory: str | None = None
    """Memory per job, such as `"16G"`."""
    exclusive: bool | None = None
    """Whether a job gets exclusive use of its node."""
    job_time: str | None = None
    """Time limit per job, such as `"2h"` or `"02:30:00"`."""
    slurm: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Other sbatch options by name, such as `constraint = "h200"`."""


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study: variants to compare, workloads, precision and time budget."""

    name: str = ""
    """Name of the run [default: the name of the file]."""
    baseline: str = ""
    """The variant to compare with: parts joined by `+`."""
    candidates: tuple[str, ...] = ()
    """The variants to compare with the baseline."""
    precision: Precision | None = None
    """Precision of every variant that names none."""
    targets: dict[str, TargetTable] = field(default_factory=dict)
    """Interpreters by name."""
    environments: dict[str, EnvironmentTable] = field(default_factory=dict)
    """Environments by name."""
    workloads: tuple[WorkloadTable, ...] = ()
    """Workloads to run."""
    budget: BudgetTable = field(default_factory=BudgetTable)
    settings: SettingsTable = field(default_factory=SettingsTable)
    gate: GateTable = field(default_factory=GateTable)
    sweep: SweepTable = field(default_factory=SweepTable)


def read_study_file(path: Path) -> Request:
    """Return the request of a study file; a UsageError starts with the name of the file."""
    tables = read_study_tables(path)
    return located_errors(path, lambda: request_of_tables(tables, path))


def read_study_tables(path: Path) -> StudyFile:
    """Return the tables of a study file, checked against the dataclasses above."""
    raw = read_toml(path, what="study file")
    for table in raw["workloads"] if isinstance(raw.get("workloads"), list) else ():
        # One mode may be written without brackets.
        if isinstance(table, dict) and isinstance(table.get("mode"), str):
            table["mode"] = [table["mode"]]
    return located_errors(path, lambda: decode(StudyFile, raw, where=""))


def located_errors(path: Path, work: Callable[[], T]) -> T:
    """Return what `work` returns; start a UsageError of it with the name of the file."""
    try:
        return work()
    except UsageError as error:
        what = error.what.removeprefix(f"{path}: ")
        raise UsageError(f"{path}: {what}", why=error.why, hint=error.hint) from error


def request_of_tables(tables: StudyFile, path: Path) -> Request:
    """Return the request that the tables of a study file make."""
    folder = path.resolve().parent
    return Request(
        name=tables.name or path.stem,
        targets={name: _target(name, table, folder) for name, table in tables.targets.items()},
        environments={
            name: _environment(name, table, folder) for name, table in tables.environments.items()
        },
        baseline=SpecText(text=tables.baseline, where=f"{path}: baseline", folder=folder)
        if tables.baseline
        else None,
        candidates=tuple(
            SpecText(text=text, where=f"{path}: candidates[{index}]", folder=folder)
            for index, text in enumerate(tables.candidates)
        ),
        precision=tables.precision,
        workloads=tuple(
            _workload(table, f"workloads[{index}]", folder, path)
            for index, table in enumerate(tables.workloads)
        ),
        budget=_checked(tables.budget, "budget"),
        settings=_checked(tables.settings, "settings"),
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
    return Environment(
        name=name,
        cores=check_cores(table.cores, where=f"{where}.cores"),
        memory=check_memory(table.memory, where=f"{where}.memory"),
        variables=tuple((key, str(value)) for key, value in table.variables.items()),
        preload=tuple(
            library if "/" not in library else str(folder / Path(library).expanduser())
            for library in table.preload
        ),
        **_numbers(table, where, "threads", "instances"),
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
    return WorkloadChoice(
        where=f"{path}: {where}",
        suite=suite,
        name=name,
        modes=modes_named(table.mode),
        device=table.device,
        optimizer_step=table.optimizer_step,
        eval_mode=table.eval_mode,
        parameters=parameters,
        **_numbers(table, where, "batch_size", "ranks", "nodes"),
    )


def _checked(table: BudgetTable | SettingsTable, where: str) -> dict[str, Any]:
    values = {key: value for key, value in vars(table).items() if value is not None}
    others = {key: value for key, value in values.items() if key not in CHECKS}
    return {**others, **_numbers(table, where, *(key for key in values if key in CHECKS))}


def _numbers(table: object, where: str, *keys: str) -> dict[str, Any]:
    """Return the numbers of a table that are given, checked, by the name of the field that each sets."""
    return {
        CHECKS[key].field_name: CHECKS[key].read(value, where=f"{where}.{key.replace('_', '-')}")
        for key in keys
        if (value := getattr(table, key)) is not None
    }

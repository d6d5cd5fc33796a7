"""The table `[sweep]` of a study file: what only `torchyard sweep` reads of it.

`torchyard bench` takes the same file and leaves the table alone. Starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torchyard.config.checks import CHECKS
from torchyard.config.request import Request, SpecText, WorkloadChoice
from torchyard.config.sweep_request import Patterns, SweepRequest
from torchyard.config.workload_spec import check_suite
from torchyard.core.sweep import ExecutorName
from torchyard.core.variant import Precision, Scalar
from torchyard.core.workload import Mode

__all__ = ["SweepTable", "sweep_of_table"]

Quantity = str | int | float


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
    executor: ExecutorName | None = None
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


def sweep_of_table(table: SweepTable, study: Request, path: Path) -> SweepRequest:
    """The request of a study file with that table; raises UsageError that names the key."""
    folder = path.resolve().parent
    for suite in table.suites:
        check_suite(suite, where="sweep.suites")
    whole = [WorkloadChoice(where=f"{path}: sweep.suites", suite=suite) for suite in table.suites]
    backends = tuple(
        SpecText(text=text, where=f"{path}: sweep.backends[{index}]", folder=folder)
        for index, text in enumerate(table.backends)
    )
    return SweepRequest(
        study=replace(
            study, workloads=(*study.workloads, *whole), candidates=backends or study.candidates
        ),
        modes=table.modes,
        precisions=table.precisions,
        patterns=Patterns(only=table.only, exclude=table.exclude),
        cell_s=_checked(table, "cell_limit"),
        tries=_checked(table, "tries"),
        null=table.null,
        largest_batches=True if table.batch_size else None,
        executor=table.executor,
        executor_options=_executor_options(table),
    )


def _executor_options(table: SweepTable) -> dict[str, Scalar]:
    found: dict[str, Scalar | None] = {
        "partition": table.partition,
        "account": table.account,
        "qos": table.qos,
        "gpus": table.gpus,
        "cpus": table.cpus,
        "memory": table.job_memory,
        "exclusive": table.exclusive,
        "time": table.job_time,
        "at-most": table.at_most,
        **{f"slurm-{name}": value for name, value in table.slurm.items()},
    }
    return {name: value for name, value in found.items() if value is not None}


def _checked(table: SweepTable, name: str) -> Any:
    value = getattr(table, name)
    if value is None:
        return None
    return CHECKS[name].read(value, where=f"sweep.{name.replace('_', '-')}")

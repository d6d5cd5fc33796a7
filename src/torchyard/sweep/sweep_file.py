"""What a user asks of a sweep: the `[sweep]` table of a study file, and `SweepRequest`.

Study files and options each make a `SweepRequest`, in which None and empty mean "not given".
`torchyard bench` reads the same file and ignores the table. Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from torchyard.bench.request import Request, SpecText, WorkloadChoice, merge
from torchyard.bench.study_file import (
    SweepTable,
    located_errors,
    read_study_tables,
    request_of_tables,
)
from torchyard.bench.workload_text import check_suite
from torchyard.core.number_checks import CHECKS
from torchyard.core.records import nearest_hint
from torchyard.core.study import MODES, PRECISIONS, Mode, Precision, Scalar, Workload
from torchyard.errors import UsageError
from torchyard.sweep.model import EXECUTORS, ExecutorName

_SHARD_HINT: Final = "write --shard PART/PARTS, such as 1/4 for the first of four"


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Which workloads stay, by globs over SUITE/NAME or over NAME alone."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def keep(self, workload: Workload) -> bool:
        """Whether it fits one of `only`, if there are any, and none of `exclude`."""
        if self.only and not any(fits(pattern, workload) for pattern in self.only):
            return False
        return not any(fits(pattern, workload) for pattern in self.exclude)

    def idle(self, workloads: Sequence[Workload]) -> list[str]:
        """Patterns that fit none of the workloads: often a slip of the pen."""
        return [
            pattern
            for pattern in (*self.only, *self.exclude)
            if not any(fits(pattern, workload) for workload in workloads)
        ]


def fits(pattern: str, workload: Workload) -> bool:
    """Whether the pattern is meant for this workload; case counts, as it does in names."""
    whole = f"{workload.suite}/{workload.name}"
    return fnmatchcase(whole, pattern) or fnmatchcase(workload.name, pattern)


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The part of a sweep that one source says."""

    study: Request = field(default_factory=Request)
    """Suites are its workloads, backends its candidates."""
    modes: tuple[Mode, ...] = ()
    """For workloads that name none; `study.modes` is for all of them."""
    precisions: tuple[Precision, ...] = ()
    patterns: Patterns = field(default_factory=Patterns)
    shard: tuple[int, int] | None = None
    cell_s: float | None = None
    tries: int | None = None
    null: bool | None = None
    largest_batches: bool | None = None
    """Search for the largest batch size that fits, where a workload names none."""
    executor: ExecutorName | None = None
    executor_options: dict[str, Scalar] = field(default_factory=dict)


def merge_sweeps(below: SweepRequest, above: SweepRequest) -> SweepRequest:
    """One request of two: what `above` says wins; options of an executor are merged by name."""
    study = merge(below.study, above.study)
    if above.largest_batches:
        sized = tuple(replace(choice, batch_size=None) for choice in study.workloads)
        study = replace(study, batch_size=None, workloads=sized)
    return replace(
        below,
        study=study,
        modes=above.modes or below.modes,
        precisions=above.precisions or below.precisions,
        patterns=Patterns(
            only=above.patterns.only or below.patterns.only,
            exclude=above.patterns.exclude or below.patterns.exclude,
        ),
        shard=above.shard or below.shard,
        cell_s=above.cell_s if above.cell_s is not None else below.cell_s,
        tries=above.tries if above.tries is not None else below.tries,
        null=above.null if above.null is not None else below.null,
        largest_batches=above.largest_batches
        or (below.largest_batches and above.study.batch_size is None),
        executor=above.executor or below.executor,
        executor_options={**below.executor_options, **above.executor_options},
    )


_SHARD: Final = re.compile(r"[0-9]{1,6}/[0-9]{1,6}")


def parse_shard(text: str) -> tuple[int, int]:
    """`1/4`: the part and how many parts there are."""
    part_text, slash, parts_text = text.partition("/")
    if not slash or not _SHARD.fullmatch(f"{part_text.strip()}/{parts_text.strip()}"):
        raise UsageError(f"--shard: {text!r} is no part of a whole", hint=_SHARD_HINT)
    part, parts = int(part_text), int(parts_text)
    if parts < 1:
        raise UsageError(f"--shard: {text!r} has no parts", hint=_SHARD_HINT)
    if not 1 <= part <= parts:
        raise UsageError(
            f"--shard: there is no part {part} of {parts}",
            why=f"parts are counted from 1 to {parts}",
            hint=_SHARD_HINT,
        )
    return part, parts


def read_precisions(names: Sequence[str], *, where: str) -> tuple[Precision, ...]:
    """Precisions by name, each once, in the order given."""
    for name in names:
        _check(name, PRECISIONS, "precision", where)
    return tuple(word for name in dict.fromkeys(names) for word in PRECISIONS if word == name)


def read_modes(names: Sequence[str], *, where: str) -> tuple[Mode, ...]:
    """Modes by name, each once, in the order given."""
    for name in names:
        _check(name, MODES, "mode", where)
    return tuple(word for name in dict.fromkeys(names) for word in MODES if word == name)


def check_executor(name: str, *, where: str) -> ExecutorName:
    """The executor of that name."""
    _check(name, EXECUTORS, "executor", where)
    return next(word for word in EXECUTORS if word == name)


def check_executor_options(whole: SweepRequest, options: SweepRequest) -> None:
    """Raise UsageError when options of a cluster are given and everything runs here.

    Those of a study file are left alone: the same file may be tried here with --executor local.
    """
    of_clusters = [name for name in options.executor_options if name != "at-most"]
    if of_clusters and (whole.executor or "local") == "local":
        said = {"time": "job-time", "memory": "job-memory"}
        names = [said.get(name, name) for name in of_clusters]
        given = ["slurm" if name.startswith("slurm-") else name for name in names]
        raise UsageError(
            ", ".join(f"--{name}" for name in dict.fromkeys(given)) + ": no effect",
            why="cells run on this machine",
            hint="add --executor slurm",
        )


def _check(name: str, known: Sequence[str], what: str, where: str) -> None:
    if name not in known:
        raise UsageError(
            f"{where}: there is no {what} {name!r}",
            hint=_SHORT.get(name.lower()) or nearest_hint(name, known, what=what),
        )


_SHORT: Final = {
    short: f"did you mean {word!r}?"
    for short, word in {
        "fp32": "float32",
        "fp16": "float16",
        "half": "float16",
        "bf16": "bfloat16",
        "autocast": "amp",
        "train": "training",
        "eval": "inference",
    }.items()
}


Quantity = str | int | float


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


def read_sweep_file(path: Path) -> SweepRequest:
    """The same with what its table `[sweep]` says."""
    said = read_study_tables(path)
    return located_errors(
        path, lambda: sweep_of_table(said.sweep, request_of_tables(said, path), path)
    )

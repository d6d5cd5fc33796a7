"""The request of a sweep: `SweepRequest`, and the `[sweep]` table of a study file.

Study files and options each produce a `SweepRequest`, in which None and empty mean "not given".
`torchyard bench` reads the same file and ignores the table. Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
from torchyard.core.records import encode, nearest_hint
from torchyard.core.study import (
    MODE_NAMES,
    PRECISIONS,
    Mode,
    Precision,
    Scalar,
    Workload,
    modes_named,
)
from torchyard.errors import UsageError
from torchyard.sweep.model import EXECUTORS, LOCAL_OPTIONS, ExecutorName

_SHARD_HINT: Final = "use --shard PART/PARTS, such as 1/4 for the first of four"


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Selection of workloads by globs over SUITE/NAME or NAME."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def keep(self, workload: Workload) -> bool:
        """Return whether the workload matches `only`, if given, and no pattern of `exclude`."""
        if self.only and not any(matches(pattern, workload) for pattern in self.only):
            return False
        return not any(matches(pattern, workload) for pattern in self.exclude)

    def unmatched(self, workloads: Sequence[Workload]) -> list[str]:
        """Return the patterns that match none of the workloads, which are often typing errors."""
        return [
            pattern
            for pattern in (*self.only, *self.exclude)
            if not any(matches(pattern, workload) for workload in workloads)
        ]


def matches(pattern: str, workload: Workload) -> bool:
    """Return whether the pattern matches SUITE/NAME or NAME; case-sensitive."""
    full_name = f"{workload.suite}/{workload.name}"
    return fnmatchcase(full_name, pattern) or fnmatchcase(workload.name, pattern)


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The definition of a sweep from one source: a study file or options."""

    study: Request = field(default_factory=Request)
    """Its workloads are whole suites, its candidates the backends."""
    modes: tuple[Mode, ...] = ()
    """For workloads that name none; `study.modes` applies to all workloads."""
    precisions: tuple[Precision, ...] = ()
    patterns: Patterns = field(default_factory=Patterns)
    shard: tuple[int, int] | None = None
    budget_s: float | None = None
    cell_s: float | None = None
    tries: int | None = None
    null: bool | None = None
    largest_batches: bool | None = None
    """Search for the largest batch size that fits if a workload names none."""
    executor: ExecutorName | None = None
    executor_options: dict[str, Scalar] = field(default_factory=dict)


def merge_sweeps(below: SweepRequest, above: SweepRequest) -> SweepRequest:
    """Merge two requests: `above` overrides `below`; executor options are merged by name."""
    study = merge(below.study, above.study)
    if above.largest_batches:
        sized = tuple(replace(choice, batch_size=None) for choice in study.workloads)
        study = replace(study, batch_size=None, workloads=sized)
    overrides = {name: value for name, value in vars(above).items() if value not in (None, ())}
    merged: dict[str, Any] = {
        **overrides,
        "study": study,
        "patterns": Patterns(
            only=above.patterns.only or below.patterns.only,
            exclude=above.patterns.exclude or below.patterns.exclude,
        ),
        "largest_batches": above.largest_batches
        or (below.largest_batches and above.study.batch_size is None),
        "executor_options": {**below.executor_options, **above.executor_options},
    }
    return replace(below, **merged)


_SHARD: Final = re.compile(r"[0-9]{1,6}/[0-9]{1,6}")


def parse_shard(text: str) -> tuple[int, int]:
    """Parse `1/4` into the shard number and the number of shards."""
    part_text, slash, parts_text = text.partition("/")
    if not slash or not _SHARD.fullmatch(f"{part_text.strip()}/{parts_text.strip()}"):
        raise UsageError(f"--shard: {text!r} is not a shard", hint=_SHARD_HINT)
    part, parts = int(part_text), int(parts_text)
    if parts < 1:
        raise UsageError(f"--shard: {text!r} has no shards", hint=_SHARD_HINT)
    if not 1 <= part <= parts:
        raise UsageError(
            f"--shard: there is no shard {part} of {parts}",
            why=f"shards are numbered from 1 to {parts}",
            hint=_SHARD_HINT,
        )
    return part, parts


def read_precisions(names: Sequence[str], *, where: str) -> tuple[Precision, ...]:
    """Return the precisions of these names, without duplicates, in the given order."""
    for name in names:
        _check(name, PRECISIONS, "precision", where)
    return tuple(word for name in dict.fromkeys(names) for word in PRECISIONS if word == name)


def read_modes(names: Sequence[str], *, where: str) -> tuple[Mode, ...]:
    """Return the modes of these names, without duplicates, in the given order."""
    for name in names:
        _check(name, MODE_NAMES, "mode", where)
    return modes_named(word for name in names for word in MODE_NAMES if word == name)


def check_executor(name: str, *, where: str) -> ExecutorName:
    """Return the executor of that name; raise UsageError if there is none."""
    _check(name, EXECUTORS, "executor", where)
    return next(word for word in EXECUTORS if word == name)


def check_executor_options(whole: SweepRequest, options: SweepRequest) -> None:
    """Raise UsageError if cluster options are given on the command line but cells run locally.

    Cluster options of a study file are allowed: the same file may be run with --executor local.
    """
    cluster_options = [name for name in options.executor_options if name not in LOCAL_OPTIONS]
    if cluster_options and (whole.executor or "local") == "local":
        option_names = {"time": "job-time", "memory": "job-memory"}
        names = [option_names.get(name, name) for name in cluster_options]
        shown_names = ["slurm" if name.startswith("slurm-") else name for name in names]
        raise UsageError(
            ", ".join(f"--{name}" for name in dict.fromkeys(shown_names)) + ": no effect",
            why="cells run on this machine",
            hint="add --executor slurm",
        )


def _check(name: str, valid: Sequence[str], what: str, where: str) -> None:
    if name not in valid:
        raise UsageError(
            f"{where}: unknown {what} {name!r}",
            hint=_ABBREVIATIONS.get(name.lower()) or nearest_hint(name, valid, what=what),
        )


_ABBREVIATIONS: Final = {
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


_EXECUTOR_KEYS: Final = (
    *("partition", "account", "qos", "gpus", "cpus"),
    *("job_memory", "exclusive", "job_time", "at_most", "reserve_cores"),
)
_EXECUTOR_NAMES: Final = {
    "job_memory": "memory",
    "job_time": "time",
    "at_most": "at-most",
    "reserve_cores": "reserve-cores",
}


def sweep_of_table(table: SweepTable, study: Request, path: Path) -> SweepRequest:
    """Return the request of a study file with that table; a UsageError names the key."""
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
        modes=modes_named(table.modes),
        precisions=table.precisions,
        patterns=Patterns(only=table.only, exclude=table.exclude),
        budget_s=_checked(table, "budget"),
        cell_s=_checked(table, "cell_limit"),
        tries=_checked(table, "tries"),
        null=table.null,
        largest_batches=True if table.batch_size else None,
        executor=table.executor,
        executor_options=executor_options(encode(table), table.slurm.items()),
    )


def executor_options(
    values: Mapping[str, Any], slurm: Iterable[tuple[str, Scalar]]
) -> dict[str, Scalar]:
    """Return the given options by the names that executors use; `slurm` are other sbatch options."""
    options = {_EXECUTOR_NAMES.get(key, key): values[key] for key in _EXECUTOR_KEYS}
    options |= {f"slurm-{name}": value for name, value in slurm}
    return {name: value for name, value in options.items() if value is not None}


def _checked(table: SweepTable, name: str) -> Any:
    value = getattr(table, name)
    if value is None:
        return None
    return CHECKS[name].read(value, where=f"sweep.{name.replace('_', '-')}")


def read_sweep_file(path: Path) -> SweepRequest:
    """Read the request of a study file, including its `[sweep]` table."""
    tables = read_study_tables(path)
    return located_errors(
        path, lambda: sweep_of_table(tables.sweep, request_of_tables(tables, path), path)
    )

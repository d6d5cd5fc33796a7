"""The request of a user, before defaults are filled in: common to study files and options.

Each source specifies only part of a study. Each is converted to a `Request`, in which None and empty
mean "not given"; `merge` overrides the file with the options, and `assemble` fills in the rest.
Values are checked where they are read, so that an error can name the option or key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchyard.core.study import Environment, Mode, Precision, Target

Scalar = int | float | str | bool


@dataclass(frozen=True, kw_only=True)
class SpecText:
    """Text of a variant or workload and its origin; paths in it are relative to `folder`."""

    text: str
    where: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class WorkloadChoice:
    """One workload, or a whole suite if it has no name."""

    where: str
    suite: str
    name: str = ""
    modes: tuple[Mode, ...] = ()
    device: str | None = None
    batch_size: int | None = None
    optimizer_step: bool | None = None
    eval_mode: bool | None = None
    ranks: int | None = None
    nodes: int | None = None
    parameters: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The part of a study that one source sets."""

    name: str = ""
    targets: dict[str, Target] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    baseline: SpecText | None = None
    candidates: tuple[SpecText, ...] = ()
    files: tuple[SpecText, ...] = ()
    """Files that are compared with the workload's file, each a candidate."""
    backend: SpecText | None = None
    """How the workload's file and `files` are run."""
    precision: Precision | None = None
    workloads: tuple[WorkloadChoice, ...] = ()
    modes: tuple[Mode, ...] = ()
    """Overrides the modes of every workload; the next six fields also apply to all workloads."""
    device: str | None = None
    batch_size: int | None = None
    optimizer_step: bool | None = None
    eval_mode: bool | None = None
    ranks: int | None = None
    nodes: int | None = None
    budget: dict[str, Any] = field(default_factory=dict)
    """Fields of `Budget` that are set."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `MeasureSettings` that are set."""


def merge(below: Request, above: Request) -> Request:
    """Merge two requests; `above` takes precedence, and tables are merged by name."""
    return replace(
        below,
        name=above.name or below.name,
        targets={**below.targets, **above.targets},
        environments={**below.environments, **above.environments},
        baseline=above.baseline or below.baseline,
        candidates=above.candidates or below.candidates,
        files=above.files or below.files,
        backend=above.backend or below.backend,
        precision=above.precision or below.precision,
        workloads=above.workloads or below.workloads,
        modes=above.modes or below.modes,
        device=below.device if above.device is None else above.device,
        batch_size=above.batch_size if above.batch_size is not None else below.batch_size,
        optimizer_step=(
            above.optimizer_step if above.optimizer_step is not None else below.optimizer_step
        ),
        eval_mode=above.eval_mode if above.eval_mode is not None else below.eval_mode,
        ranks=above.ranks if above.ranks is not None else below.ranks,
        nodes=above.nodes if above.nodes is not None else below.nodes,
        budget={**below.budget, **above.budget},
        settings={**below.settings, **above.settings},
    )

"""The request of a user, before defaults are filled in: common to study files and options.

Each source specifies only part of a study. Each is converted to a `Request`, in which None and empty
mean "not given"; `merge` overrides the file with the options, and `assemble` fills in the rest.
Values are checked where they are read, so that an error can name the option or key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
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
class WorkloadSettings:
    """Settings of one workload, or of all workloads of a request."""

    modes: tuple[Mode, ...] = ()
    device: str | None = None
    batch_size: int | None = None
    optimizer_step: bool | None = None
    eval_mode: bool | None = None
    ranks: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkloadChoice(WorkloadSettings):
    """One workload, or a whole suite if it has no name."""

    where: str
    suite: str
    name: str = ""
    parameters: tuple[tuple[str, Scalar], ...] = ()

    def overridden(self, settings: WorkloadSettings) -> WorkloadChoice:
        """Return the choice with all settings that are given."""
        values = {one.name: getattr(settings, one.name) for one in fields(WorkloadSettings)}
        return replace(self, **{key: one for key, one in values.items() if one not in (None, ())})


@dataclass(frozen=True, kw_only=True)
class Request(WorkloadSettings):
    """The part of a study that one source sets; its workload settings override those of each workload."""

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
    budget: dict[str, Any] = field(default_factory=dict)
    """Fields of `Budget` that are set."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `MeasureSettings` that are set."""


def merge(below: Request, above: Request) -> Request:
    """Merge two requests; `above` takes precedence, and tables are merged by name."""
    merged: dict[str, Any] = {}
    for one in fields(Request):
        own, value = getattr(below, one.name), getattr(above, one.name)
        if isinstance(value, dict):
            merged[one.name] = {**own, **value}
        else:
            merged[one.name] = own if value == one.default else value
    return Request(**merged)

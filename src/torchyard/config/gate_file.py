"""Limits of a gate in a TOML file: the table `[gate]` of a study file, or of a file of its own.

Strict about the table, and blind to everything else in the file. Starts nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchyard.config.toml_file import read_toml
from torchyard.core.gate_outcome import Action
from torchyard.core.records import decode
from torchyard.core.stored import Metric
from torchyard.core.units import parse_fraction
from torchyard.errors import UsageError

__all__ = ["GateTable", "read_gate_file", "read_limit"]

Quantity = str | int | float


@dataclass(frozen=True, kw_only=True)
class GateTable:
    """How much slower workloads may get before `torchyard gate` fails."""

    max_slowdown: Quantity | None = None
    """For every workload that no entry of `limits` fits, such as `"2%"`."""
    limits: dict[str, str | int | float] = field(default_factory=dict)
    """Limits by pattern of workloads, such as `"models/*" = "5%"`; the last one that fits counts."""
    metric: Metric | None = None
    """What is limited: `speedup` (when left out), `time`, `compile` or `memory`."""
    on_undecided: Action | None = None
    """When the interval holds the limit: `warn` (when left out), `pass` or `fail`."""
    on_unsupported: Action | None = None
    """When the data cannot support a verdict: `fail` (when left out), `warn` or `pass`."""
    on_missing: Action | None = None
    """When a workload of the baseline is gone: `warn` (when left out), `fail` or `pass`."""
    on_failing: Action | None = None
    """When a workload fails now or its results are wrong: `fail` (when left out), `warn` or `pass`."""


def read_gate_file(path: Path) -> GateTable:
    """The table `[gate]` of that file; raises UsageError that starts with the file's name."""
    raw = read_toml(path)
    table: Any = raw.get("gate")
    if table is None:
        raise UsageError(f"{path}: there is no table [gate]", hint="add [gate] with max-slowdown")
    try:
        found = decode(GateTable, table, where="gate")
        for pattern, limit in found.limits.items():
            read_limit(limit, where=f"gate.limits.{pattern!r}")
        if found.max_slowdown is not None:
            read_limit(found.max_slowdown, where="gate.max-slowdown")
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", why=error.why, hint=error.hint) from error
    return found


def read_limit(value: Quantity, *, where: str) -> float:
    """A limit as a fraction, from `2%` or 0.02; above 100 % only with its sign."""
    try:
        number = parse_fraction(value) if isinstance(value, str) else float(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", hint="write it like 2% or 0.02") from error
    if isinstance(value, bool) or not 0.0 <= number < math.inf:
        raise UsageError(f"{where}: {value!r} is no limit", hint="write it like 2% or 0.02")
    return number

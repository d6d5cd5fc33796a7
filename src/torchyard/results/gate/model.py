"""Limits, policy and outcome of the gate, and the `[gate]` table of a TOML file that sets limits.

A slowdown is new over old, minus one: 0.02 is two per cent more time (or memory, or compile
time). The table may be in a study file or in a file of its own; it is validated strictly, and the
rest of the file is ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from torchyard.core.records import decode
from torchyard.core.toml_file import read_toml
from torchyard.core.units import parse_fraction
from torchyard.errors import UsageError
from torchyard.results.compare.model import CrossSide, FactDifference, Support
from torchyard.results.model import Metric

Standing = Literal[
    "crossed",
    "failing",
    "untrusted",
    "unsupported",
    "missing",
    "undecided",
    "kept",
    "no limit",
    "new",
]
STANDINGS: Final[tuple[Standing, ...]] = get_args(Standing)
"""The gravest first. `crossed` and `kept` are sure; `undecided` has the limit inside its interval."""

Action = Literal["pass", "warn", "fail"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
RowAction = Literal["pass", "warn", "fail", "untrusted"]
"""What follows from a row. `untrusted` is no policy: such a row neither passes nor fails."""


@dataclass(frozen=True, kw_only=True)
class GateLimit:
    """How much slower workloads that fit the pattern may get."""

    pattern: str
    """Of labels or of `suite/name`; may hold * and ?."""
    max_slowdown: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What follows from workloads that are neither surely kept nor surely crossed."""

    on_undecided: Action = "warn"
    on_unsupported: Action = "fail"
    """A gate that cannot judge must not say that all is well."""
    on_missing: Action = "warn"
    on_failing: Action = "fail"


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """One workload."""

    workload: str
    variants: tuple[str, str]
    """Before and now."""
    standing: Standing
    action: RowAction
    max_slowdown: float | None = None
    slowdown: float | None = None
    low: float | None = None
    high: float | None = None
    """Ends of its interval."""
    p_crossed: float | None = None
    """Of "within the limit", one-sided, adjusted over the gate's rows."""
    support: Support | None = None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """The whole answer."""

    metric: Metric
    one: CrossSide
    """Before: what limits are relative to."""
    other: CrossSide
    """Now: what is judged."""
    rows: tuple[GateRow, ...]
    """The gravest first."""
    facts: tuple[FactDifference, ...]
    policy: Policy
    confidence: float

    @property
    def failed(self) -> bool:
        """Whether the gate is shut. Without that it has passed only if nothing is untrusted."""
        return any(row.action == "fail" for row in self.rows)

    @property
    def untrusted(self) -> bool:
        """Whether a workload with a limit has numbers that must not be used."""
        return any(row.action == "untrusted" for row in self.rows)

    @property
    def judged(self) -> int:
        """How many workloads have a limit and a number that can be held against it."""
        return sum(row.standing in {"crossed", "kept", "undecided"} for row in self.rows)

    def counts(self) -> dict[Standing, int]:
        """How many there are of each standing."""
        found = {name: sum(row.standing == name for row in self.rows) for name in STANDINGS}
        return {name: count for name, count in found.items() if count}


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

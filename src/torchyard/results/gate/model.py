"""Limits, policy and outcome of the gate, and the `[gate]` table of a TOML file that sets limits.

A slowdown is new / old - 1: 0.02 is two percent more time (or memory, or compile time). The table
may be in a study file or in a separate file; it is validated strictly, and the rest of the file is
ignored.
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
"""Most severe first. `crossed`: the whole interval exceeds the limit; `kept`: the whole interval is
within it; `undecided`: the interval contains the limit."""

Action = Literal["pass", "warn", "fail"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
RowAction = Literal["pass", "warn", "fail", "untrusted"]
"""The effect of a row. `untrusted` is not a policy: an untrusted row neither passes nor fails."""


@dataclass(frozen=True, kw_only=True)
class GateLimit:
    """The limit of workloads that match a pattern."""

    pattern: str
    """Matches labels or `suite/name`; may contain * and ?."""
    max_slowdown: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Actions for workloads whose limit is neither exceeded nor kept."""

    on_undecided: Action = "warn"
    on_unsupported: Action = "fail"
    """Fails by default: a gate must not pass without a check."""
    on_missing: Action = "warn"
    on_failing: Action = "fail"


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """The check of one workload."""

    workload: str
    variants: tuple[str, str]
    """The variants before and now."""
    standing: Standing
    action: RowAction
    max_slowdown: float | None = None
    slowdown: float | None = None
    low: float | None = None
    high: float | None = None
    """Ends of the confidence interval of the slowdown."""
    p_crossed: float | None = None
    """One-sided p-value of "within the limit", adjusted over the rows of the gate."""
    support: Support | None = None
    why: tuple[str, ...] = ()
    failed_before: bool = False
    """Whether a failing workload also failed before."""


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """The result of a gate."""

    metric: Metric
    one: CrossSide
    """The reference of the limits."""
    other: CrossSide
    """The checked run."""
    rows: tuple[GateRow, ...]
    """Most severe first."""
    facts: tuple[FactDifference, ...]
    policy: Policy
    confidence: float

    @property
    def failed(self) -> bool:
        """Whether the gate failed. Otherwise it passed only if nothing is untrusted."""
        return any(row.action == "fail" for row in self.rows)

    @property
    def untrusted(self) -> bool:
        """Whether a workload with a limit is untrusted."""
        return any(row.action == "untrusted" for row in self.rows)

    def counts(self) -> dict[Standing, int]:
        """Return the number of rows by standing."""
        counts = {name: sum(row.standing == name for row in self.rows) for name in STANDINGS}
        return {name: count for name, count in counts.items() if count}


Quantity = str | int | float


@dataclass(frozen=True, kw_only=True)
class GateTable:
    """Limits of `torchyard gate`."""

    max_slowdown: Quantity | None = None
    """Limit of workloads that match no entry of `limits`, such as `"2%"`."""
    limits: dict[str, str | int | float] = field(default_factory=dict)
    """Limits by workload pattern, such as `"models/*" = "5%"`; the last match applies."""
    metric: Metric | None = None
    """The limited metric [default: speedup]"""
    on_undecided: Action | None = None
    """If the interval contains the limit [default: warn]"""
    on_unsupported: Action | None = None
    """If the data does not support a verdict [default: fail]"""
    on_missing: Action | None = None
    """If a workload of the baseline is missing [default: warn]"""
    on_failing: Action | None = None
    """If a workload fails or its results are wrong [default: fail]"""


def read_gate_file(path: Path) -> GateTable:
    """Read the `[gate]` table of a file; errors start with the file name."""
    raw = read_toml(path)
    table: Any = raw.get("gate")
    if table is None:
        raise UsageError(f"{path}: there is no [gate] table", hint="add [gate] with max-slowdown")
    try:
        gate = decode(GateTable, table, where="gate")
        for pattern, limit in gate.limits.items():
            read_limit(limit, where=f"gate.limits.{pattern!r}")
        if gate.max_slowdown is not None:
            read_limit(gate.max_slowdown, where="gate.max-slowdown")
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", why=error.why, hint=error.hint) from error
    return gate


def read_limit(value: Quantity, *, where: str) -> float:
    """Parse a limit such as `2%` or 0.02 to a fraction; above 100 % only with a percent sign."""
    try:
        number = parse_fraction(value) if isinstance(value, str) else float(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", hint="use 2% or 0.02") from error
    if isinstance(value, bool) or not 0.0 <= number < math.inf:
        raise UsageError(f"{where}: {value!r} is not a limit", hint="use 2% or 0.02")
    return number

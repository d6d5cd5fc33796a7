"""What a gate found: every workload, how it stands to its limit, and what follows from that. No I/O.

A slowdown is new over old, less one: 0.02 is two per cent more time (or memory, or compile time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from torchyard.core.cross_comparison import CrossSide, FactDifference, Support
from torchyard.core.stored import Metric

__all__ = [
    "ACTIONS",
    "STANDINGS",
    "Action",
    "GateLimit",
    "GateOutcome",
    "GateRow",
    "Policy",
    "RowAction",
    "Standing",
]

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

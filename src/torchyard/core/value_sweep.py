"""A sweep of operators for wasted work: what was asked for, and what came of each case. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchyard.core.values import Proof

__all__ = [
    "CaseState",
    "OperatorCase",
    "OperatorFinding",
    "OperatorWorth",
    "Sweep",
    "SweepSettings",
]


class CaseState(StrEnum):
    """What came of a case."""

    DONE = "done"
    UNSUPPORTED = "unsupported"
    """This torch or this device cannot run it, watched or not."""
    FAILED = "failed"
    """It runs, and under the watch it raised an error."""
    CRASHED = "crashed"
    """Its process died."""
    TOO_LONG = "too long"
    """Its process was ended because it took longer than the limit."""


@dataclass(frozen=True, kw_only=True)
class OperatorWorth:
    """What the waste costs, at the size of the case. None means not measured."""

    operator_ns: float | None = None
    wasted_ns: float | None = None
    """The wasted part alone, on as many bytes."""
    gain: float | None = None
    """Time of the operator : time with its fix simulated."""
    gain_method: str = ""
    method: str = ""
    unavailable: str = ""

    @property
    def share(self) -> float | None:
        """Of the operator's time that the wasted part takes when it runs alone."""
        if self.operator_ns is None or self.wasted_ns is None or self.operator_ns <= 0:
            return None
        return min(1.0, self.wasted_ns / self.operator_ns)


@dataclass(frozen=True, kw_only=True)
class OperatorFinding:
    """Wasted work of one operator."""

    direction: str
    """forward or backward"""
    pattern: str
    operator: str
    path: tuple[str, ...] = ()
    """Operators that it runs inside of, outermost first."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bytes_wasted: int = 0
    """In one call."""
    count: int = 0
    detail: str = ""
    native: int = 0
    """How often it ran in one call that nobody watched."""
    proof: Proof = field(default_factory=Proof)
    worth: OperatorWorth = field(default_factory=OperatorWorth)


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One case, forward and backward."""

    case: str
    state: CaseState
    family: str = ""
    why: str = ""
    seconds: float = 0.0
    directions: tuple[str, ...] = ()
    findings: tuple[OperatorFinding, ...] = ()
    written_bytes: int = 0
    """By all operators of the case, at all depths."""
    not_seen_bytes: int = 0
    """Of these, in memory that cannot be looked into."""
    not_tried: int = 0
    """How often something was not put on trial."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What a sweep was asked for; kept beside its results, so that it can go on later."""

    python: str
    target: str
    device: str = "cpu"
    only: str = "*"
    cases_file: str | None = None
    threads: int = 1
    limit_s: float = 120.0
    """For one case."""
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Everything about one sweep."""

    settings: SweepSettings
    torch: str = ""
    device: str = ""
    names: tuple[str, ...] = ()
    """Of all cases that were asked for."""
    cases: tuple[OperatorCase, ...] = ()
    """Of those that are done."""

    @property
    def finished(self) -> bool:
        """Whether every case has a result."""
        return len(self.cases) >= len(self.names) > 0

    def count(self, state: CaseState) -> int:
        """How many cases ended so."""
        return sum(case.state is state for case in self.cases)

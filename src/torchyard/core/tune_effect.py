"""How much quieter a tune makes a machine, measured. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.audit import Audit, AuditChange

__all__ = ["TuneEffect"]


@dataclass(frozen=True, kw_only=True)
class TuneEffect:
    """One set of knobs: the machine with them against the same machine before and after."""

    what: str
    """`everything`, or the name of a knob."""
    written: tuple[str, ...]
    """Knobs that changed something."""
    refused: tuple[tuple[str, str], ...] = ()
    """Knob and reason."""
    plain: tuple[Audit, ...]
    """As the machine is, before and after the tune: what drifts meanwhile is in both."""
    tuned: Audit
    changes: tuple[AuditChange, ...]
    """Tuned over plain, for each kind of spread."""
    unsteady: tuple[str, ...] = ()
    """Spreads in which the plain audits differ from each other: the machine changed by itself, and
    what changed with the tune is not proven to come from it."""

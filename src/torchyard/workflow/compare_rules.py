"""How sure a verdict between two sides has to be. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.stats.between_runs import SESSION_SD

__all__ = ["Rules"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How sure a verdict has to be."""

    confidence: float = 0.95
    margin: float = 0.01
    session_sd: float = SESSION_SD

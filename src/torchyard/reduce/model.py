"""Result of a reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchyard.core.comparison import Estimate

__all__ = ["Reduced", "Times"]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of both sides in ms: medians over rounds, or geometric means over processes."""

    baseline_ms: float
    candidate_ms: float
    model_loss_ms: float | None = None
    """Loss of the model in the same rounds."""

    @property
    def loss_ms(self) -> float:
        """What the candidate loses."""
        return self.candidate_ms - self.baseline_ms

    @property
    def share(self) -> float | None:
        """The loss as a share of that of the model in the same rounds."""
        return self.loss_ms / self.model_loss_ms if self.model_loss_ms else None

    @property
    def log_ratio(self) -> float:
        """The relative loss: logarithm of candidate by baseline time."""
        return math.log(self.candidate_ms / self.baseline_ms)


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """A reduced program, and how much of the difference it shows."""

    workload: str
    baseline: str
    candidate: str
    operators_before: int
    operators: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    """Lengths of dimensions: before, after."""
    graphs: int
    """Graphs that dynamo made of the model; the program is one."""
    end_to_end: Times
    captured: Times
    """All operators as one graph."""
    cut: Times
    """The operators that remain, with the shapes of the model."""
    reduced: Times
    """With shorter dimensions."""
    fresh: Times | None
    """The script in new processes."""
    estimate: Estimate | None
    """Speedup of the script in new processes."""
    complete: bool
    """False: the time was used up before no operator could be left out."""
    tests: int
    elapsed_s: float
    script: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether the script shows the loss in new processes."""
        interval = None if self.estimate is None else self.estimate.interval
        return interval is not None and interval.high < 1.0

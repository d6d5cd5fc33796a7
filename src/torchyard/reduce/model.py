"""Result of a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.comparison import Estimate

Metric = Literal["time", "memory", "wrong"]
UNITS: Final[dict[Metric, str]] = {"time": "ms", "memory": "MB", "wrong": "error"}
SCALES: Final[dict[Metric, float]] = {"time": 1e6, "memory": 1e6, "wrong": 1.0}
"""What measured values (ns, bytes, largest error) are divided by."""

WORSE: Final[dict[Metric, str]] = {
    "time": "{} is slower than {}",
    "memory": "{} uses more memory than {}",
    "wrong": "{} has wrong results, unlike {}",
}


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Time in ms, peak memory in MB, or error of both sides.

    Times are medians over rounds, or geometric means over processes. The error is the largest one if the
    accuracy check finds the results wrong, and 0 otherwise.
    """

    baseline: float
    candidate: float
    model_loss: float | None = None
    """Loss of the model in the same rounds."""

    @property
    def loss(self) -> float:
        """What the candidate loses."""
        return self.candidate - self.baseline

    @property
    def share(self) -> float | None:
        """The loss as a share of that of the model in the same rounds."""
        return self.loss / self.model_loss if self.model_loss else None


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """A reduced program, and how much of the difference it shows."""

    workload: str
    baseline: str
    candidate: str
    metric: Metric = "time"
    operators_before: int
    operators: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    """Lengths of dimensions: before, after."""
    graphs: int
    """Graphs that dynamo made of the model; the program is one."""
    end_to_end: Sides
    captured: Sides
    """All operators as one graph."""
    cut: Sides
    """The operators that remain, with the shapes of the model."""
    reduced: Sides
    """With shorter dimensions."""
    fresh: Sides | None
    """The script in new processes."""
    estimate: Estimate | None
    """Speedup of the script in new processes."""
    confirmed: bool
    """Whether the script shows the loss in new processes."""
    complete: bool
    """False: the time was used up before no operator could be left out."""
    tests: int
    elapsed_s: float
    script: str
    environment: tuple[tuple[str, str], ...] = ()

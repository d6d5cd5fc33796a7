"""Result of a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.comparison import Estimate
from torchyard.why.model import Source

Metric = Literal["time", "memory", "wrong"]
UNITS: Final[dict[Metric, str]] = {"time": "ms", "memory": "MB", "wrong": "error"}
SCALES: Final[dict[Metric, float]] = {"time": 1e6, "memory": 1e6, "wrong": 1.0}
"""What measured values (ns, bytes, largest error) are divided by."""

LARGEST_SHARE: Final = 1.5
"""Share of the loss of the model that all of its operators as one graph can plausibly have."""
WORSE: Final[dict[Metric, str]] = {
    "time": "{} is slower than {}",
    "memory": "{} uses more memory than {}",
    "wrong": "{} has wrong results, unlike {}",
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """The part of an attribution that a search starts from."""

    number: int
    name: str
    sources: tuple[Source, ...]
    loss_ns: float
    """Loss of the part, by the attribution."""
    share: float
    """The loss as a share of the time of an iteration of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Time in ms, peak memory in MB, or error of both sides.

    Times are medians over rounds, or geometric means over processes. The error is the largest one if the
    accuracy check finds the results wrong, and 0 otherwise.
    """

    baseline: float
    candidate: float
    model_loss: float | None = None
    """Loss of the model in the same rounds; None if it is not shown to have one."""

    @property
    def loss(self) -> float:
        """What the candidate loses."""
        return self.candidate - self.baseline

    @property
    def share(self) -> float | None:
        """The loss as a share of that of the model in the same rounds; None if it has none."""
        if self.model_loss is None or self.model_loss <= 0.0:
            return None
        return self.loss / self.model_loss


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
    part: str = ""
    """Name of the part of an attribution that the search started from; else all operators."""
    part_loss: float | None = None
    """Its loss in ms, by the attribution."""
    captured: Sides
    """The operators that the search started from, as one graph."""
    cut: Sides
    """The operators that show 40 % of the loss, with the shapes of the model."""
    unrepeated: Sides
    """Without repetitions of the same operators."""
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

    @property
    def contradictory(self) -> bool:
        """Whether all operators as one graph lose much more than the model, which has the same operators."""
        return not self.part and (self.captured.share or 0.0) > LARGEST_SHARE

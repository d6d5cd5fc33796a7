"""A workload: something to run. No I/O, no torch; the worker turns it into a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

__all__ = ["MODES", "Mode", "Workload"]

Mode = Literal["inference", "training"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Suite, name, mode, device, batch size, and the parameters the suite understands."""

    suite: str
    name: str
    mode: Mode = "inference"
    device: str = "cpu"
    batch_size: int | None = None
    optimizer_step: bool = False
    parameters: tuple[tuple[str, int | float | str | bool], ...] = ()

    @property
    def label(self) -> str:
        """What tables call it: `kernels/matmul inference`, with what differs from the default."""
        text = f"{self.suite}/{self.name} {self.mode}"
        if self.optimizer_step:
            text += " +step"
        if self.batch_size is not None:
            text += f" b{self.batch_size}"
        if self.device != "cpu":
            text += f" {self.device}"
        for key, value in self.parameters:
            text += f" {key}={value}"
        return text

"""Steps with gradients set to zero and set to None, in turns: what `set_to_none=True` would bring.

Both give the same numbers, so a program can do the one in this step and the other in the next.
Two steps are a pair; which of them comes first is drawn for each pair.
"""

import random
from typing import Any, List

import torch


class GradientTurns:
    """Says what `zero_grad` does in this step, and keeps what the steps took."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._drop_first = False
        self._took_ns: List[int] = []
        self.pairs_ns: List[List[int]] = []
        """Step with zeros, step with None."""
        self._draw()

    @property
    def drops(self) -> bool:
        """Whether gradients are set to None in the step that runs now."""
        return self._drop_first != bool(self._took_ns)

    def start(self) -> None:
        """From now on `zero_grad` does what the turn says, if it was to zero at all."""
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            self._take_over(kind)

    def step(self, took_ns: int) -> None:
        """A step took so long."""
        self._took_ns.append(took_ns)
        if len(self._took_ns) == 2:
            first, second = self._took_ns
            self.pairs_ns.append([second, first] if self._drop_first else [first, second])
            self._took_ns = []
            self._draw()

    def _draw(self) -> None:
        self._drop_first = self._chance.random() < 0.5

    def _take_over(self, kind: Any) -> None:
        clear = kind.zero_grad

        def in_turn(of: Any, set_to_none: bool = True) -> Any:
            return clear(of, set_to_none=set_to_none or self.drops)

        kind.zero_grad = in_turn

"""A chain of equal layers, for slowdowns of a known size.

Every layer does the same arithmetic on tensors of the same shape, and the weights are few and used
in rotation, so they stay in the cache however long the chain is. One layer more on top of N is
therefore 1/N more work, which is how the measurement itself is tested.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DISTINCT_WEIGHTS = 8
SETTLING_ROUNDS = 8
MEASURED_ROUNDS = 8


class LayeredMlp(nn.Module):
    """`layers` times Linear and ReLU; the weights do not depend on how many layers there are."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.count = layers
        self.weights = nn.ModuleList(nn.Linear(width, width) for _ in range(DISTINCT_WEIGHTS))
        for linear in self.weights:
            nn.init.normal_(linear.weight, std=(2.0 / width) ** 0.5)
            nn.init.zeros_(linear.bias)
        self._level()

    def forward(self, values: Any) -> Any:
        """The values after the last layer."""
        for index in range(self.count):
            values = functional.relu(self.weights[index % DISTINCT_WEIGHTS](values))
        return values

    def _level(self) -> None:
        """Scale the weights so that values neither grow nor shrink from round to round.

        In a long chain they must not vanish into denormal numbers, which are slow to compute with,
        nor overflow a half-precision type. Without bias the chain is proportional to its input,
        so the growth of a round, once settled, can be divided out.
        """
        values = torch.ones(1, self.weights[0].in_features)
        growth = 0.0
        with torch.no_grad():
            for round_index in range(SETTLING_ROUNDS + MEASURED_ROUNDS):
                for linear in self.weights:
                    values = functional.relu(linear(values))
                size = float(values.norm())
                if size == 0.0:  # so narrow that every path is cut: there is nothing to level
                    return
                values = values / size
                if round_index >= SETTLING_ROUNDS:
                    growth += math.log(size) / (MEASURED_ROUNDS * DISTINCT_WEIGHTS)
            for linear in self.weights:
                linear.weight.mul_(math.exp(-growth))

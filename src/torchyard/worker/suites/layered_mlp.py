"""A chain of equal layers, for slowdowns of a known size.

Every layer does the same arithmetic on tensors of the same shape, and the weights are few and used
in rotation, so they stay in the cache however long the chain is. One layer more on top of N is
therefore 1/N more work, which is how the measurement itself is tested.
"""

from typing import Any

from torch import nn
from torch.nn import functional

DISTINCT_WEIGHTS = 8


class LayeredMlp(nn.Module):
    """`layers` times Linear and ReLU; the weights do not depend on how many layers there are."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.count = layers
        self.weights = nn.ModuleList(nn.Linear(width, width) for _ in range(DISTINCT_WEIGHTS))
        for linear in self.weights:
            # Keeps the size of the activations from layer to layer. They must neither vanish into
            # denormal numbers, which are slow to compute with, nor overflow a half-precision type.
            nn.init.orthogonal_(linear.weight, gain=2.0**0.5)
            nn.init.zeros_(linear.bias)

    def forward(self, values: Any) -> Any:
        """The values after the last layer."""
        for index in range(self.count):
            values = functional.relu(self.weights[index % DISTINCT_WEIGHTS](values))
        return values

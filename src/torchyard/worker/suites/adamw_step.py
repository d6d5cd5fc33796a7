"""One step of AdamW as a workload: the forward pass updates the module's own parameters.

Uses the functional form of torch's AdamW, because there the optimiser's whole state is in the
arguments: held as buffers it is converted, copied, moved and put back with the module, which the
state inside a ``torch.optim.Optimizer`` is not.
"""

from typing import Any, List, Tuple

import torch
from torch import nn
from torch.optim.adamw import adamw


def smallest_divisor(parameters: List[Any]) -> float:
    """Adam's epsilon: the usual one is zero in float16, where small gradients would divide by it."""
    return 1e-4 if parameters[0].dtype is torch.float16 else 1e-8


class AdamWStep(nn.Module):
    """Parameters of a stack of linear layers, fixed gradients, and the state of AdamW."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        network = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.count = 0
        for parameter in network.parameters():
            # The gradient is given, so nothing is differentiated by these parameters.
            fixed = nn.Parameter(parameter.detach().clone(), requires_grad=False)
            self.register_parameter(f"parameter_{self.count}", fixed)
            self._keep("gradient", torch.randn_like(fixed))
            self._keep("mean", torch.zeros_like(fixed))
            self._keep("square", torch.zeros_like(fixed))
            self._keep("step", torch.zeros(()))
            self.count += 1

    def _keep(self, kind: str, value: Any) -> None:
        self.register_buffer(f"{kind}_{self.count}", value)

    def _all(self, kind: str) -> List[Any]:
        return [getattr(self, f"{kind}_{index}") for index in range(self.count)]

    def forward(self) -> Tuple[Any, ...]:
        """Take one step; the parameters after it."""
        parameters = self._all("parameter")
        with torch.no_grad():
            adamw(
                parameters,
                self._all("gradient"),
                self._all("mean"),
                self._all("square"),
                [],
                self._all("step"),
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=1e-4,
                weight_decay=1e-2,
                eps=smallest_divisor(parameters),
                maximize=False,
            )
        return tuple(parameters)

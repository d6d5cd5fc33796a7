"""From a module's output to the scalar that training starts its backward pass from.

Half-precision outputs are brought to float32 first: the sum of a million of them does not fit into
float16. Nothing is ever narrowed, so a float64 reference stays one. Knows no workload.
"""

from typing import Any, Callable, Sequence

import torch
from torch.nn import functional


def widened(output: Any) -> Any:
    """The tensor in float32 or wider."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def total(output: Any) -> Any:
    """The sum of all elements, said "sum"."""
    return widened(output).sum()


def mean_square(output: Any) -> Any:
    """The mean of the squares, said "mean of squares"."""
    return widened(output).square().mean()


def cross_entropy(targets: Any) -> Callable[[Any], Any]:
    """Cross-entropy of logits, classes last, against fixed targets; said "cross-entropy"."""

    def loss(logits: Any) -> Any:
        flat = widened(logits).reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, targets.reshape(-1))

    return loss


def sgd(learning_rate: float) -> Callable[[Sequence[Any]], Any]:
    """Plain gradient descent: no state, so that a step costs what its arithmetic costs."""

    def optimizer(parameters: Sequence[Any]) -> Any:
        return torch.optim.SGD(parameters, lr=learning_rate)

    return optimizer


def adamw(learning_rate: float) -> Callable[[Sequence[Any]], Any]:
    """AdamW, the usual choice for transformers."""

    def optimizer(parameters: Sequence[Any]) -> Any:
        return torch.optim.AdamW(parameters, lr=learning_rate)

    return optimizer

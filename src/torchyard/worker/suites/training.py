"""What training workloads share: the scalar loss of any output, and dropout set to zero in image models."""

from typing import Any, Callable, Sequence

import torch
from torch import nn
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


# Whole layers or parts of images left out by chance, in torchvision and in timm.
CHANCE = (
    "StochasticDepth",
    "DropPath",
    "DropBlock2d",
    "DropBlock3d",
    "PatchDropout",
    "PatchDropoutWithIndices",
)
PROBABILITIES = ("p", "drop_prob", "prob", "drop_rate")


def take_chance_out(module: Any) -> Any:
    """Set every probability of leaving something out to 0; the module itself."""
    for part in module.modules():
        left_out = isinstance(part, nn.modules.dropout._DropoutNd)
        if left_out or type(part).__name__ in CHANCE:
            for name in PROBABILITIES:
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, 0.0)
        elif isinstance(getattr(part, "drop_rate", None), float):
            part.drop_rate = 0.0  # given to the function instead of a module
    return module

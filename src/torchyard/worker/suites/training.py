"""Losses and optimizers of training workloads, and disabling dropout in image models."""

from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.nn import functional


def widened(output: Any) -> Any:
    """Return the tensor in float32 or wider."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def total(output: Any) -> Any:
    """Return the sum of all elements; loss name "sum"."""
    return widened(output).sum()


def mean_square(output: Any) -> Any:
    """Return the mean of the squares; loss name "mean of squares"."""
    return widened(output).square().mean()


def cross_entropy(targets: Any) -> Callable[[Any], Any]:
    """Return the cross-entropy loss of logits, classes last, against fixed targets."""

    def loss(logits: Any) -> Any:
        flat = widened(logits).reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, targets.reshape(-1))

    return loss


def sgd(learning_rate: float) -> Callable[[Sequence[Any]], Any]:
    """Return a function that creates a plain SGD optimizer, which has no state."""
    return lambda parameters: torch.optim.SGD(parameters, lr=learning_rate)


def adamw(learning_rate: float) -> Callable[[Sequence[Any]], Any]:
    """Return a function that creates an AdamW optimizer, as usual for transformers."""
    return lambda parameters: torch.optim.AdamW(parameters, lr=learning_rate)


# Modules of torchvision and timm that randomly drop layers or parts of images.
DROP_MODULES = (
    "StochasticDepth",
    "DropPath",
    "DropBlock2d",
    "DropBlock3d",
    "PatchDropout",
    "PatchDropoutWithIndices",
)
PROBABILITIES = ("p", "drop_prob", "prob", "drop_rate")


def disable_dropout(module: Any) -> Any:
    """Set every drop probability to 0; return the module."""
    for part in module.modules():
        is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
        if is_dropout or type(part).__name__ in DROP_MODULES:
            for name in PROBABILITIES:
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, 0.0)
        elif isinstance(getattr(part, "drop_rate", None), float):
            part.drop_rate = 0.0  # passed to a function instead of a module
    return module

"""Kernels of the suite `kernels` that work on rows: lookups, norms, softmax, losses, reductions.

Norms and softmax have no exact number of operations: implementations differ in how they compute means
and exponentials. Only their memory traffic is defined.
"""

from typing import Any, Callable, Dict

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import (
    MEAN_CUBE,
    MEAN_SQUARE,
    Kernel,
    need_torch,
    random_images,
)

PADDING_SHARE = 4
"""One of this many tokens of a padded lookup is padding."""


class Softmax(nn.Module):
    """Softmax over the last dimension."""

    def forward(self, rows: Any) -> Any:
        """Return the softmax."""
        return functional.softmax(rows, dim=-1)


class CrossEntropy(nn.Module):
    """The loss of each row of logits against its class."""

    def forward(self, logits: Any, classes: Any) -> Any:
        """Return one loss per row."""
        return functional.cross_entropy(logits, classes, reduction="none")


class RmsNorm(nn.Module):
    """Root-mean-square normalisation with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, rows: Any) -> Any:
        """Return the normalised rows times the weight."""
        return functional.rms_norm(rows, self.weight.shape, self.weight, 1e-6)


class ReduceSum(nn.Module):
    """Sum of each row."""

    def forward(self, rows: Any) -> Any:
        """Return one number per row."""
        return rows.sum(dim=-1)


class ReduceMax(nn.Module):
    """Maximum of each row."""

    def forward(self, rows: Any) -> Any:
        """Return one number per row."""
        return rows.amax(dim=-1)


def _embedding(choices: Choices) -> Kernel:
    places = torch.randint(choices["rows"], (choices.rows, choices["length"]))
    return _lookup(nn.Embedding(choices["rows"], choices["width"]), places)


def _embedding_padded(choices: Choices) -> Kernel:
    rows, length = choices["rows"], choices["length"]
    require(rows > 1, choices.label, "the only row is the padding", "give rows of at least 2")
    places = torch.randint(1, rows, (choices.rows, length))
    padded = length // PADDING_SHARE
    if padded:
        places[:, -padded:] = 0
    return _lookup(nn.Embedding(rows, choices["width"], padding_idx=0), places)


def _lookup(module: Any, places: Any) -> Kernel:
    # A row that is used repeatedly is read once; the gradient covers the whole table.
    read = int(places.unique().numel()) * module.embedding_dim
    return Kernel(module, (places,), places.numel() * module.embedding_dim, weights_read=read)


def _sequence(choices: Choices) -> Any:
    return torch.randn(choices.rows, choices["length"], choices["width"])


def _layer_norm(choices: Choices) -> Kernel:
    module = nn.LayerNorm(choices["width"])
    # With equal weights the sum of the output does not depend on the input, and the gradient
    # would consist of rounding errors.
    nn.init.normal_(module.weight)
    rows = _sequence(choices)
    return Kernel(module, (rows,), rows.numel(), operands_train=True)


def _rms_norm(choices: Choices) -> Kernel:
    need_torch(2, 4, choices.label, "functional.rms_norm")
    rows = _sequence(choices)
    return Kernel(RmsNorm(choices["width"]), (rows,), rows.numel(), operands_train=True)


def _batch_norm(choices: Choices) -> Kernel:
    module = nn.BatchNorm2d(choices["channels"])
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    images = random_images(choices)
    # A channel's sum and its sum of squares are fixed by the weights; that of cubes is not.
    return Kernel(module, (images,), images.numel(), operands_train=True, loss=MEAN_CUBE)


def _group_norm(choices: Choices) -> Kernel:
    channels, groups = choices["channels"], choices["groups"]
    require(
        channels % groups == 0 and channels > groups,
        choices.label,
        "channels is not a multiple of groups",
        "give channels as a multiple of groups, at least twice",
    )
    module = nn.GroupNorm(groups, channels)
    nn.init.normal_(module.weight)
    images = random_images(choices)
    return Kernel(module, (images,), images.numel(), operands_train=True)


def _softmax(choices: Choices) -> Kernel:
    rows = _sequence(choices)
    return Kernel(Softmax(), (rows,), rows.numel(), operands_train=True, loss=MEAN_SQUARE)


def _cross_entropy(choices: Choices) -> Kernel:
    logits = torch.randn(choices.rows, choices["classes"])
    classes = torch.randint(choices["classes"], (choices.rows,))
    return Kernel(CrossEntropy(), (logits, classes), choices.rows, operands_train=True)


def _reduce_sum(choices: Choices) -> Kernel:
    rows = torch.randn(choices.rows, choices["width"])
    flops = float(choices.rows * (choices["width"] - 1))
    return Kernel(ReduceSum(), (rows,), choices.rows, flops, operands_train=True)


def _reduce_max(choices: Choices) -> Kernel:
    rows = torch.randn(choices.rows, choices["width"])
    return Kernel(ReduceMax(), (rows,), choices.rows, operands_train=True)


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "embedding": _embedding,
    "embedding-padded": _embedding_padded,
    "layer-norm": _layer_norm,
    "rms-norm": _rms_norm,
    "batch-norm": _batch_norm,
    "group-norm": _group_norm,
    "softmax": _softmax,
    "cross-entropy": _cross_entropy,
    "reduce-sum": _reduce_sum,
    "reduce-max": _reduce_max,
}

"""Kernels of the suite `kernels` that do little arithmetic: lookups, norms, reductions, padding, pooling.

Most have no exact number of operations, because implementations differ in how they compute means and
exponentials. For those only the memory traffic is defined.
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
    Operator,
    need_torch,
    random_images,
)

PADDING_SHARE = 4
"""One of this many tokens of a padded lookup is padding."""


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
    module = nn.RMSNorm(choices["width"], eps=1e-6)
    nn.init.normal_(module.weight)
    rows = _sequence(choices)
    return Kernel(module, (rows,), rows.numel(), operands_train=True)


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
    module = Operator(functional.softmax, dim=-1)
    return Kernel(module, (rows,), rows.numel(), operands_train=True, loss=MEAN_SQUARE)


def _cross_entropy(choices: Choices) -> Kernel:
    logits = torch.randn(choices.rows, choices["classes"])
    classes = torch.randint(choices["classes"], (choices.rows,))
    module = Operator(functional.cross_entropy, reduction="none")
    return Kernel(module, (logits, classes), choices.rows, operands_train=True)


def _reduction(function: Callable[..., Any], counted: bool) -> Callable[[Choices], Kernel]:
    """Return the builder of a reduction of rows; `counted`: one operation less than elements."""

    def build(choices: Choices) -> Kernel:
        rows = torch.randn(choices.rows, choices["width"])
        flops = float(choices.rows * (choices["width"] - 1)) if counted else None
        module = Operator(function, dim=-1)
        return Kernel(module, (rows,), choices.rows, flops, operands_train=True)

    return build


class Chain(nn.Module):
    """A chain of elementwise products and sums; eager writes every result, a compiler only the last."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.pairs, self.odd = divmod(operations, 2)

    def forward(self, left: Any, right: Any) -> Any:
        """Return the last result of the chain."""
        result = left
        for _ in range(self.pairs):
            result = result * right + left
        return result * right if self.odd else result


def _padded(
    kind: Callable[[int], nn.Module], inside: bool = False, dimensions: int = 2
) -> Callable[[Choices], Kernel]:
    """Return the builder of a padding; `inside`: it must be smaller than the image."""

    def build(choices: Choices) -> Kernel:
        size, pad = choices["size"], choices["pad"]
        limit = size - 1 if inside else 2**31 // size
        require(pad <= limit, choices.label, f"pad is above {limit}", f"give pad {limit} or less")
        output = choices.rows * choices["channels"] * (size + 2 * pad) ** dimensions
        images = random_images(choices, dimensions)
        return Kernel(kind(pad), (images,), output, operands_train=True)

    return build


def _pooled(kind: Callable[[int], nn.Module], counted: bool = False) -> Callable[[Choices], Kernel]:
    """Return the builder of a pooling; `counted`: an operation for each element of a window."""

    def build(choices: Choices) -> Kernel:
        size, kernel = choices["size"], choices["kernel"]
        require(
            size % kernel == 0,
            choices.label,
            "size is not a multiple of kernel",
            "give a multiple of kernel",
        )
        output = choices.rows * choices["channels"] * (size // kernel) ** 2
        flops = float(output * kernel**2) if counted else None
        images = random_images(choices)
        return Kernel(kind(kernel), (images,), output, flops, operands_train=True)

    return build


def _adaptive_avg_pool2d(choices: Choices) -> Kernel:
    output_size = choices["output"]
    output = choices.rows * choices["channels"] * output_size**2
    module = nn.AdaptiveAvgPool2d(output_size)
    return Kernel(module, (random_images(choices),), output, operands_train=True)


def _resized(mode: str) -> Callable[[Choices], Kernel]:
    def build(choices: Choices) -> Kernel:
        images, factor = random_images(choices), choices["factor"]
        module = nn.Upsample(scale_factor=float(factor), mode=mode)
        return Kernel(module, (images,), images.numel() * factor**2, operands_train=True)

    return build


def _elementwise_chain(choices: Choices) -> Kernel:
    operations, elements = choices["operations"], choices.rows * choices["width"]
    # Factors below one, so that no chain diverges.
    operands = tuple(torch.rand(choices.rows, choices["width"]) for _ in range(2))
    flops = float(operations * elements)
    return Kernel(Chain(operations), operands, elements, flops, operands_train=True)


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "embedding": _embedding,
    "embedding-padded": _embedding_padded,
    "layer-norm": _layer_norm,
    "rms-norm": _rms_norm,
    "batch-norm": _batch_norm,
    "group-norm": _group_norm,
    "softmax": _softmax,
    "cross-entropy": _cross_entropy,
    "reduce-sum": _reduction(torch.sum, counted=True),
    "reduce-max": _reduction(torch.amax, counted=False),
    "constant-pad2d": _padded(lambda pad: nn.ConstantPad2d(pad, 0.0)),
    "reflection-pad2d": _padded(nn.ReflectionPad2d, inside=True),
    "replication-pad2d": _padded(nn.ReplicationPad2d),
    "replication-pad3d": _padded(nn.ReplicationPad3d, dimensions=3),
    "max-pool2d": _pooled(nn.MaxPool2d),
    "avg-pool2d": _pooled(nn.AvgPool2d, counted=True),
    "adaptive-avg-pool2d": _adaptive_avg_pool2d,
    "interpolate-nearest": _resized("nearest"),
    "interpolate-bilinear": _resized("bilinear"),
    "elementwise-chain": _elementwise_chain,
}

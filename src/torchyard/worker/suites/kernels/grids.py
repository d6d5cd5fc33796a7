"""Kernels of the suite `kernels` that move or combine elements: padding, pooling, resizing, chains.

Most of them do no arithmetic, or an amount that depends on the implementation; for those only the
memory traffic is defined.
"""

from typing import Any, Callable, Dict

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import Kernel, random_images


class Resize(nn.Module):
    """Upsampling by an integer factor."""

    def __init__(self, factor: int, method: str) -> None:
        super().__init__()
        self.factor = factor
        self.method = method

    def forward(self, images: Any) -> Any:
        """Return the upsampled images."""
        corners = None if self.method == "nearest" else False
        return functional.interpolate(
            images, scale_factor=float(self.factor), mode=self.method, align_corners=corners
        )


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


def _padded2d(kind: Any, largest: Callable[[int], int]) -> Callable[[Choices], Kernel]:
    def build(choices: Choices) -> Kernel:
        size, pad = choices["size"], choices["pad"]
        limit = largest(size)
        require(pad <= limit, choices.label, f"pad is above {limit}", f"give pad {limit} or less")
        images = random_images(choices)
        output = choices.rows * choices["channels"] * (size + 2 * pad) ** 2
        return Kernel(kind(pad), (images,), output, operands_train=True)

    return build


def _constant_pad(pad: int) -> Any:
    return nn.ConstantPad2d(pad, 0.0)


def _any_pad(size: int) -> int:
    return 2**31 // size


def _inside(size: int) -> int:
    return size - 1


def _replication_pad3d(choices: Choices) -> Kernel:
    size, pad = choices["size"], choices["pad"]
    volume = torch.randn(choices.rows, choices["channels"], size, size, size)
    output = choices.rows * choices["channels"] * (size + 2 * pad) ** 3
    return Kernel(nn.ReplicationPad3d(pad), (volume,), output, operands_train=True)


def _windows(choices: Choices) -> int:
    size, kernel = choices["size"], choices["kernel"]
    require(
        size % kernel == 0,
        choices.label,
        "size is not a multiple of kernel",
        "give a multiple of kernel",
    )
    return choices.rows * choices["channels"] * (size // kernel) ** 2


def _max_pool2d(choices: Choices) -> Kernel:
    output = _windows(choices)
    return Kernel(
        nn.MaxPool2d(choices["kernel"]), (random_images(choices),), output, operands_train=True
    )


def _avg_pool2d(choices: Choices) -> Kernel:
    output, kernel = _windows(choices), choices["kernel"]
    # For each window one addition less than elements, and one division.
    flops = float(output * kernel**2)
    return Kernel(
        nn.AvgPool2d(kernel), (random_images(choices),), output, flops, operands_train=True
    )


def _adaptive_avg_pool2d(choices: Choices) -> Kernel:
    output_size = choices["output"]
    output = choices.rows * choices["channels"] * output_size**2
    return Kernel(
        nn.AdaptiveAvgPool2d(output_size), (random_images(choices),), output, operands_train=True
    )


def _resized(method: str) -> Callable[[Choices], Kernel]:
    def build(choices: Choices) -> Kernel:
        images, factor = random_images(choices), choices["factor"]
        output = images.numel() * factor**2
        return Kernel(Resize(factor, method), (images,), output, operands_train=True)

    return build


def _elementwise_chain(choices: Choices) -> Kernel:
    operations, width = choices["operations"], choices["width"]
    # Factors below one, so that no chain diverges.
    left, right = (torch.rand(choices.rows, width) for _ in range(2))
    elements = choices.rows * width
    return Kernel(
        Chain(operations),
        (left, right),
        elements,
        float(operations * elements),
        operands_train=True,
    )


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "constant-pad2d": _padded2d(_constant_pad, _any_pad),
    "reflection-pad2d": _padded2d(nn.ReflectionPad2d, _inside),
    "replication-pad2d": _padded2d(nn.ReplicationPad2d, _any_pad),
    "replication-pad3d": _replication_pad3d,
    "max-pool2d": _max_pool2d,
    "avg-pool2d": _avg_pool2d,
    "adaptive-avg-pool2d": _adaptive_avg_pool2d,
    "interpolate-nearest": _resized("nearest"),
    "interpolate-bilinear": _resized("bilinear"),
    "elementwise-chain": _elementwise_chain,
}

"""Convolutions of the suite `kernels`. Operations are counted by the definition of a convolution.

Products with zero padding count, as in torch's FLOP counter; a faster algorithm (Winograd, FFT) needs
fewer operations and may therefore appear to exceed the machine's peak rate.
"""

from typing import Any, Callable, Dict

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import Kernel, random_images


class ColumnsConvolution(nn.Module):
    """A convolution by im2col and one matrix product.

    With `ones` it creates the vector of ones that older versions of PyTorch used to add a bias, although
    there is no bias. Written in Python because torch's own operator is not reachable where oneDNN or
    cuDNN is available, and cannot be compiled.
    """

    def __init__(self, channels: int, kernel: int, ones: bool) -> None:
        super().__init__()
        plain = nn.Conv2d(channels, channels, kernel, bias=False)
        self.weight = nn.Parameter(plain.weight.detach().flatten(1))
        self.kernel = kernel
        self.ones = ones

    def forward(self, images: Any) -> Any:
        """Return images of the same size."""
        rows, columns = images.shape[2:]
        if self.ones:
            images.new_ones(rows * columns)
        unfolded = functional.unfold(images, self.kernel, padding=self.kernel // 2)
        return (self.weight @ unfolded).view(images.shape)


def _odd_kernel(choices: Choices) -> int:
    kernel = choices["kernel"]
    require(kernel % 2 == 1, choices.label, "kernel is even", "give kernel an odd number")
    return kernel


def _same_size(choices: Choices, module: Any, kernel: int, groups: int = 1) -> Kernel:
    """Return the kernel of a convolution that keeps the number of channels and the image size."""
    images = random_images(choices)
    flops = 2.0 * choices.rows * (choices["channels"] * kernel * choices["size"]) ** 2 / groups
    return Kernel(module, (images,), images.numel(), flops, operands_train=True)


def _conv2d(choices: Choices) -> Kernel:
    channels, kernel = choices["channels"], _odd_kernel(choices)
    module = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
    return _same_size(choices, module, kernel)


def _conv2d_columns(choices: Choices) -> Kernel:
    kernel = _odd_kernel(choices)
    module = ColumnsConvolution(choices["channels"], kernel, bool(choices["ones"]))
    return _same_size(choices, module, kernel)


def _conv2d_depthwise(choices: Choices) -> Kernel:
    channels, kernel = choices["channels"], _odd_kernel(choices)
    module = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)
    return _same_size(choices, module, kernel, channels)


def _conv2d_1x1(choices: Choices) -> Kernel:
    channels = choices["channels"]
    return _same_size(choices, nn.Conv2d(channels, channels, 1, bias=False), 1)


def _conv3d(choices: Choices) -> Kernel:
    channels, size, kernel = choices["channels"], choices["size"], _odd_kernel(choices)
    module = nn.Conv3d(channels, channels, kernel, padding=kernel // 2, bias=False)
    volume = torch.randn(choices.rows, channels, size, size, size)
    flops = 2.0 * choices.rows * channels**2 * (kernel * size) ** 3
    return Kernel(module, (volume,), volume.numel(), flops, operands_train=True)


def _conv2d_transposed(choices: Choices) -> Kernel:
    channels, size, stride = choices["channels"], choices["size"], choices["stride"]
    # Kernel size and stride are equal, so that windows do not overlap, as in a U-Net's upsampling.
    module = nn.ConvTranspose2d(channels, channels, stride, stride=stride, bias=False)
    images = random_images(choices)
    flops = 2.0 * choices.rows * (channels * stride * size) ** 2
    return Kernel(module, (images,), images.numel() * stride**2, flops, operands_train=True)


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "conv2d": _conv2d,
    "conv2d-columns": _conv2d_columns,
    "conv2d-depthwise": _conv2d_depthwise,
    "conv2d-1x1": _conv2d_1x1,
    "conv2d-transposed": _conv2d_transposed,
    "conv3d": _conv3d,
}

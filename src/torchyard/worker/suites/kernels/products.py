"""Kernels of the suite `kernels` that multiply: matrix products, perceptrons, attention, convolutions.

Operations are counted by definition: products with zero padding count, as in torch's FLOP counter, and a
faster algorithm (Winograd, FFT) may therefore appear to exceed the machine's peak rate.
"""

import math
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import Kernel, Operator, need_torch, random_images

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
        """Divide the weights by the growth of a round: no denormal numbers (slow), no overflow."""
        values = torch.ones(1, self.weights[0].in_features)
        growth = 0.0
        with torch.no_grad():
            for round_index in range(SETTLING_ROUNDS + MEASURED_ROUNDS):
                for linear in self.weights:
                    values = functional.relu(linear(values))
                size = float(values.norm())
                if size == 0.0:  # so narrow that every activation is zero: nothing to scale
                    return
                values = values / size
                if round_index >= SETTLING_ROUNDS:
                    growth += math.log(size) / (MEASURED_ROUNDS * DISTINCT_WEIGHTS)
            for linear in self.weights:
                linear.weight.mul_(math.exp(-growth))


def _product(choices: Choices, height: int, inner: int, columns: int) -> Kernel:
    batch: Tuple[int, ...] = () if choices.batch_size is None else (choices.batch_size,)
    operands = (torch.randn((*batch, height, inner)), torch.randn((*batch, inner, columns)))
    output = choices.rows * height * columns
    return Kernel(
        Operator(torch.matmul), operands, output, 2.0 * output * inner, operands_train=True
    )


def _mlp(choices: Choices) -> Kernel:
    size, width, hidden, classes = (choices[key] for key in ("size", "width", "hidden", "classes"))
    images = torch.rand(choices.rows, size, size)
    flops = 2.0 * choices.rows * (size * size * width + width * hidden + hidden * classes)
    module = nn.Sequential(
        nn.Flatten(),
        nn.Linear(size * size, width),
        nn.ReLU(),
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
    return Kernel(module, (images,), choices.rows * classes, flops)


def _layered_mlp(choices: Choices) -> Kernel:
    layers, width = choices["layers"] + choices["extra_layers"], choices["width"]
    module = LayeredMlp(layers, width)
    inputs = torch.randn(choices.rows, width)
    flops = 2.0 * choices.rows * width**2 * layers
    return Kernel(module, (inputs,), choices.rows * width, flops)


def _attention(choices: Choices, queries: int, causal: bool) -> Kernel:
    heads, length, width = choices["heads"], choices["length"], choices["width"]
    query = torch.randn(choices.rows, heads, queries, width)
    key, value = (torch.randn(choices.rows, heads, length, width) for _ in range(2))
    # With a causal mask only these pairs count; an implementation may compute the others, too.
    pairs = length * (length + 1) // 2 if causal else queries * length
    flops = 4.0 * choices.rows * heads * pairs * width
    module = Operator(functional.scaled_dot_product_attention, is_causal=causal)
    return Kernel(module, (query, key, value), query.numel(), flops, operands_train=True)


def _attention_grouped(choices: Choices) -> Kernel:
    heads, shared, length, width = (
        choices[key] for key in ("heads", "key_heads", "length", "width")
    )
    require(
        heads % shared == 0,
        choices.label,
        "heads is not a multiple of key_heads",
        "give heads as a multiple of key_heads",
    )
    need_torch(2, 5, choices.label, "grouped attention")
    query = torch.randn(choices.rows, heads, length, width)
    key, value = (torch.randn(choices.rows, shared, length, width) for _ in range(2))
    flops = 4.0 * choices.rows * heads * length**2 * width
    module = Operator(functional.scaled_dot_product_attention, enable_gqa=True)
    return Kernel(module, (query, key, value), query.numel(), flops, operands_train=True)


class ColumnsConvolution(nn.Module):
    """A convolution by im2col and one matrix product; torch's own is hidden by oneDNN and cuDNN.

    `ones` creates the vector of ones with which older versions of PyTorch added even an absent bias.
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


def _convolution(
    choices: Choices,
    kernel: int,
    groups: int = 1,
    dimensions: int = 2,
    module: Optional[nn.Module] = None,
) -> Kernel:
    """Return a convolution that keeps the number of channels and the size of images or volumes."""
    channels = choices["channels"]
    images = random_images(choices, dimensions)
    kind = nn.Conv2d if dimensions == 2 else nn.Conv3d
    if module is None:
        module = kind(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    flops = 2.0 * images.numel() * channels * kernel**dimensions / groups
    return Kernel(module, (images,), images.numel(), flops, operands_train=True)


def _conv2d_columns(choices: Choices) -> Kernel:
    kernel = _odd_kernel(choices)
    module = ColumnsConvolution(choices["channels"], kernel, bool(choices["ones"]))
    return _convolution(choices, kernel, module=module)


def _conv2d_transposed(choices: Choices) -> Kernel:
    channels, size, stride = choices["channels"], choices["size"], choices["stride"]
    # Kernel size and stride are equal, so that windows do not overlap, as in a U-Net's upsampling.
    module = nn.ConvTranspose2d(channels, channels, stride, stride=stride, bias=False)
    images = random_images(choices)
    flops = 2.0 * choices.rows * (channels * stride * size) ** 2
    return Kernel(module, (images,), images.numel() * stride**2, flops, operands_train=True)


def _square_product(choices: Choices) -> Kernel:
    return _product(choices, choices["size"], choices["size"], choices["size"])


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "matmul": _square_product,
    "matmul-tall": lambda c: _product(c, c["height"], c["width"], c["width"]),
    "matmul-batched": _square_product,
    "matmul-vector": lambda c: _product(c, c["size"], c["size"], 1),
    "mlp": _mlp,
    "layered-mlp": _layered_mlp,
    "attention": lambda c: _attention(c, c["length"], bool(c["causal"])),
    "attention-causal": lambda c: _attention(c, c["length"], True),
    "attention-grouped": _attention_grouped,
    "attention-decode": lambda c: _attention(c, 1, False),
    "conv2d": lambda c: _convolution(c, _odd_kernel(c)),
    "conv2d-columns": _conv2d_columns,
    "conv2d-depthwise": lambda c: _convolution(c, _odd_kernel(c), groups=c["channels"]),
    "conv2d-1x1": lambda c: _convolution(c, 1),
    "conv2d-transposed": _conv2d_transposed,
    "conv3d": lambda c: _convolution(c, _odd_kernel(c), dimensions=3),
}

"""The suite `kernels`: one operator or one small chain each, with shapes as parameters.

Each is an ``nn.Module``, so that training and compilation treat kernels and models alike. An
operator without weights takes its operands as inputs in inference, where a compiler that folds
constants would otherwise compute the answer once and for all; in training the operands are the
parameters, so that the backward pass is the whole one. Loss: the sum of the output.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker import catalog
from torchyard.worker.built import Built, map_tensors
from torchyard.worker.suites import losses
from torchyard.worker.suites.adamw_step import AdamWStep
from torchyard.worker.suites.choices import Choices, choose, require
from torchyard.worker.suites.layered_mlp import LayeredMlp

# A sum has no minimum: a larger rate would let the weights run away during a long measurement.
LEARNING_RATE = 1e-6


def names() -> List[str]:
    """All kernels."""
    return [entry.name for entry in catalog.KERNELS]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one kernel; it is drawn on the CPU, so that every device gets the same numbers."""
    choices = choose("kernels", name, mode, batch_size, parameters)
    module, args, flops = _BUILDERS[name](choices)
    if mode == "training" and name in _OPERANDS_TRAIN:
        module, args = OnParameters(module, args), ()
    mutates = name == "optimizer-step"
    return Built(
        module.to(device),
        map_tensors(args, lambda tensor: tensor.to(device)),
        loss=None if mutates else losses.total,
        loss_said="" if mutates else "sum",
        optimizer=None if mutates else losses.sgd(LEARNING_RATE),
        flops=flops,
        mutates=mutates,
    )


Made = Tuple[Any, Tuple[Any, ...], Optional[float]]


class OnParameters(nn.Module):
    """A kernel whose operands are parameters, so that training differentiates by all of them."""

    def __init__(self, kernel: Any, operands: Tuple[Any, ...]) -> None:
        super().__init__()
        self.kernel = kernel
        self.operands = nn.ParameterList([nn.Parameter(operand) for operand in operands])

    def forward(self) -> Any:
        """The kernel's output."""
        return self.kernel(*self.operands)


class Matmul(nn.Module):
    """Matrix product."""

    def forward(self, left: Any, right: Any) -> Any:
        """Left times right."""
        return torch.matmul(left, right)


class Mlp(nn.Module):
    """Flatten, two wide hidden layers, one narrow output layer."""

    def __init__(self, inputs: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Any) -> Any:
        """Logits."""
        return self.layers(images)


class Attention(nn.Module):
    """Scaled dot-product attention over heads."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        """The attended values."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)


def _matmul(choices: Choices) -> Made:
    size = choices["size"]
    shape: Tuple[int, ...] = (size, size)
    if choices.batch_size is not None:
        shape = (choices.batch_size, size, size)
    operands = (torch.randn(shape), torch.randn(shape))
    return Matmul(), operands, 2.0 * choices.rows * size**3


def _mlp(choices: Choices) -> Made:
    size, width, hidden, classes = (choices[key] for key in ("size", "width", "hidden", "classes"))
    images = torch.rand(choices.rows, size, size)
    flops = 2.0 * choices.rows * (size * size * width + width * hidden + hidden * classes)
    return Mlp(size * size, width, hidden, classes), (images,), flops


def _conv2d(choices: Choices) -> Made:
    channels, size, kernel = choices["channels"], choices["size"], choices["kernel"]
    require(kernel % 2 == 1, choices.label, "kernel is even", "give kernel an odd number")
    module = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
    images = torch.randn(choices.rows, channels, size, size)
    flops = 2.0 * choices.rows * (channels * kernel * size) ** 2
    return module, (images,), flops


def _attention(choices: Choices) -> Made:
    heads, length, width = choices["heads"], choices["length"], choices["width"]
    operands = tuple(torch.randn(choices.rows, heads, length, width) for _ in range(3))
    # With a causal mask an implementation may skip about half, so there is no exact number.
    flops = None if choices["causal"] else 4.0 * choices.rows * heads * length**2 * width
    return Attention(bool(choices["causal"])), operands, flops


def _embedding(choices: Choices) -> Made:
    rows, width = choices["rows"], choices["width"]
    places = torch.randint(rows, (choices.rows, choices["length"]))
    return nn.Embedding(rows, width), (places,), None


def _layer_norm(choices: Choices) -> Made:
    width = choices["width"]
    module = nn.LayerNorm(width)
    # With equal weights the sum of the output does not depend on the input at all, and the
    # gradient would be nothing but rounding errors.
    nn.init.normal_(module.weight)
    inputs = torch.randn(choices.rows, choices["length"], width)
    return module, (inputs,), None


def _replication_pad3d(choices: Choices) -> Made:
    size = choices["size"]
    volume = torch.randn(choices.rows, choices["channels"], size, size, size)
    return nn.ReplicationPad3d(choices["pad"]), (volume,), None


def _optimizer_step(choices: Choices) -> Made:
    require(
        choices.batch_size is None,
        choices.label,
        "there is no batch in an optimiser's step",
        "leave out the batch size; layers and width set the amount of work",
    )
    return AdamWStep(choices["layers"], choices["width"]), (), None


def _layered_mlp(choices: Choices) -> Made:
    layers, width = choices["layers"] + choices["extra_layers"], choices["width"]
    module = LayeredMlp(layers, width)
    inputs = torch.randn(choices.rows, width)
    return module, (inputs,), 2.0 * choices.rows * width**2 * layers


_BUILDERS: Dict[str, Callable[[Choices], Made]] = {
    "matmul": _matmul,
    "mlp": _mlp,
    "conv2d": _conv2d,
    "attention": _attention,
    "embedding": _embedding,
    "layer-norm": _layer_norm,
    "replication-pad3d": _replication_pad3d,
    "optimizer-step": _optimizer_step,
    "layered-mlp": _layered_mlp,
}
# Kernels whose inputs a real network would differentiate by as well.
_OPERANDS_TRAIN = ("matmul", "conv2d", "attention", "layer-norm", "replication-pad3d")

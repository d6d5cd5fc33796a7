"""A kernel with its operands and loss, and its minimum memory traffic.

Each input and output tensor crosses memory once: operands, weights, buffers and the output; in training
also each gradient, and buffers are written as well as read. This is a lower bound for every implementation
of the operator. A compiler can go below it: in training it may fuse the operator with its loss.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import Choices
from torchyard.worker.workload import CannotBuild, Traffic


class Loss(NamedTuple):
    """A function from the output to a scalar, and its name."""

    of: Callable[[Any], Any]
    name: str


SUM = Loss(losses.total, "sum")
MEAN_SQUARE = Loss(losses.mean_square, "mean of squares")
MEAN_CUBE = Loss(lambda output: losses.widened(output).pow(3).mean(), "mean of cubes")
"""For kernels whose sums and sums of squares are constant."""


class Kernel(NamedTuple):
    """One kernel with its operands.

    output          how many numbers come out
    flops           operations of one forward pass, only where the count is exact
    operands_train  whether a real network would also differentiate with respect to the operands
    loss            None: nothing to train
    weights_read    number of weights that a forward pass reads; None: all of them
    traffic         traffic of kernels to which the common rule does not apply
    """

    module: Any
    args: Tuple[Any, ...]
    output: int
    flops: Optional[float] = None
    operands_train: bool = False
    loss: Optional[Loss] = SUM
    weights_read: Optional[int] = None
    traffic: Optional[Traffic] = None


class Operator(nn.Module):
    """A function of tensors with fixed options, as a module."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *operands: Any) -> Any:
        """Call the function."""
        return self.function(*operands, **self.options)


class OnParameters(nn.Module):
    """A kernel whose floating-point operands are parameters, so that training differentiates them."""

    def __init__(self, kernel: Any, operands: Tuple[Any, ...]) -> None:
        super().__init__()
        self.kernel = kernel
        self.operands = nn.ParameterList([nn.Parameter(operand) for operand in operands])

    def forward(self, *indices: Any) -> Any:
        """Return the kernel's output."""
        return self.kernel(*self.operands, *indices)


def random_images(choices: Choices, dimensions: int = 2) -> Any:
    """Return square images, or cubic volumes, of the chosen batch size, channels and size."""
    return torch.randn(choices.rows, choices["channels"], *[choices["size"]] * dimensions)


def with_trained_operands(kernel: Kernel) -> Kernel:
    """Return the kernel with its floating-point operands as parameters; they come first."""
    operands = tuple(each for each in kernel.args if each.is_floating_point())
    indices = tuple(each for each in kernel.args if not each.is_floating_point())
    return kernel._replace(module=OnParameters(kernel.module, operands), args=indices)


def traffic_of(kernel: Kernel, training: bool) -> Traffic:
    """Return the minimum memory traffic of one iteration."""
    if kernel.traffic is not None:
        return kernel.traffic
    operands = [each.numel() for each in kernel.args if each.is_floating_point()]
    indices = [each for each in kernel.args if not each.is_floating_point()]
    weights = sum(each.numel() for each in kernel.module.parameters())
    buffers = [each for each in kernel.module.buffers() if each.is_floating_point()]
    buffered = sum(each.numel() for each in buffers)
    weights_read = weights if kernel.weights_read is None else kernel.weights_read
    read = sum(operands) + buffered + weights_read
    elements = read + kernel.output + (weights + buffered if training else 0)
    return Traffic(elements, sum(each.numel() * each.element_size() for each in indices))


def need_torch(major: int, minor: int, label: str, what: str) -> None:
    """Raise CannotBuild for a kernel that this torch does not have yet."""
    parts = torch.__version__.split("+")[0].split(".")
    if (int(parts[0]), int(parts[1])) < (major, minor):
        raise CannotBuild(
            f"{label}: torch {torch.__version__} has no {what}",
            hint=f"use a target with torch {major}.{minor} or newer",
        )

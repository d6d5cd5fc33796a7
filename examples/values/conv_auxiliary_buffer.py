"""A convolution that fills a buffer of ones for a bias that it does not have.

    torchyard values examples/values/conv_auxiliary_buffer.py
    torchyard values --deep examples/values/conv_auxiliary_buffer.py --today

Until 2020 the convolution of PyTorch on GPUs added its bias by a matrix product with a vector of
ones, and filled that vector in every call, with a bias or without (pytorch/pytorch issue 48539).
Rebuilt here in Python; `--today` runs the operator as it is now, which has no such buffer.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional


class OldConvolution(nn.Module):
    """A 3x3 convolution by a matrix product, as it was."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs * 9) * 0.05)
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None
        self.ones = torch.empty(0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The images, as large as they came."""
        rows, columns = images.shape[2:]
        self.ones.resize_(rows * columns).fill_(1)
        result = self.weight @ functional.unfold(images, 3, padding=1)
        if self.bias is not None:
            result = result + self.bias[:, None] @ self.ones[None, :]
        return result.view(images.shape[0], -1, rows, columns)


def main() -> None:
    """Convolve a few batches."""
    parser = argparse.ArgumentParser(description="A convolution with a buffer that nobody needs.")
    parser.add_argument("--today", action="store_true", help="the operator as it is now")
    given = parser.parse_args()
    torch.manual_seed(0)
    layer: nn.Module = OldConvolution(8, 16, bias=False)
    if given.today:
        layer = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(1, 8, 112, 112))


if __name__ == "__main__":
    main()

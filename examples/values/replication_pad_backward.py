"""A padding whose backward zeroes its gradient twice.

    torchyard values examples/values/replication_pad_backward.py
    torchyard values --deep examples/values/replication_pad_backward.py --today

Until 2020 the backward of ReplicationPad on GPUs made its result as zeros and zeroed it once more
before it added to it (pytorch/pytorch issue 48889). Rebuilt here in Python; `--today` runs the
operator as it is now, whose one fill is needed.
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PAD = 2


class OldReplicationPad3d(torch.autograd.Function):
    """Pads a volume with its outermost values, as it was."""

    @staticmethod
    def forward(context: Any, volume: torch.Tensor) -> torch.Tensor:
        """The padded volume."""
        context.shape = volume.shape
        return functional.pad(volume, (PAD,) * 6, mode="replicate")

    @staticmethod
    def backward(context: Any, grad_output: torch.Tensor) -> torch.Tensor:
        """Each gradient goes to the place that its value came from."""
        sources = [torch.arange(-PAD, size + PAD).clamp(0, size - 1) for size in context.shape[2:]]
        grad_input = torch.zeros(context.shape)
        grad_input.zero_()
        depth, height, width = torch.meshgrid(*sources, indexing="ij")
        place = (depth * context.shape[3] + height) * context.shape[4] + width
        grad_input.flatten(2).index_add_(2, place.flatten(), grad_output.flatten(2))
        return grad_input


def main() -> None:
    """Pad a few volumes, forward and backward."""
    parser = argparse.ArgumentParser(description="A padding that zeroes its gradient twice.")
    parser.add_argument("--today", action="store_true", help="the operator as it is now")
    given = parser.parse_args()
    torch.manual_seed(0)
    pad = nn.ReplicationPad3d(PAD) if given.today else OldReplicationPad3d.apply
    for _ in range(8):
        volume = torch.randn(1, 4, 16, 32, 32, requires_grad=True)
        pad(volume).square().mean().backward()


if __name__ == "__main__":
    main()

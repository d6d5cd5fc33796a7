"""Findings of value profilers in PyTorch in 2020, as small reproductions in Python.

The operators of today do not do this any more; `clean_inference` runs them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def convolution_with_an_unused_buffer_of_ones() -> None:
    """A buffer of ones, to add a bias by a matrix product, filled even when there is no bias."""
    weight = torch.randn(16, 8 * 9)
    ones = torch.empty(0)

    def convolution(images: Tensor, bias: Tensor | None = None) -> Tensor:
        positions = images.shape[2] * images.shape[3]
        # waste: redundant write, aten::fill_
        ones.resize_(positions).fill_(1)
        columns = F.unfold(images, 3, padding=1)
        result = weight @ columns
        if bias is not None:
            result += bias[:, None] @ ones[None, :]
        return result

    with torch.no_grad():
        for _ in range(3):
            convolution(torch.randn(1, 8, 48, 48))


def replication_pad_backward_zeroing_twice() -> None:
    """The gradient was made as zeros, and zeroed once more before values were added to it."""

    class ReplicationPad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, signal: Tensor, width: int) -> Tensor:
            ctx.shape, ctx.width = signal.shape, width
            return F.pad(signal, (width, width), mode="replicate")

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            size = ctx.shape[-1]
            source = torch.arange(-ctx.width, size + ctx.width).clamp(0, size - 1)
            grad_input = torch.zeros(ctx.shape)
            # waste: redundant write, aten::zero_
            grad_input.zero_()
            return grad_input.index_add_(2, source, grads[0]), None

    for _ in range(3):
        signal = torch.randn(8, 16, 64, requires_grad=True)
        ReplicationPad.apply(signal, 2).pow(2).mean().backward()


def embedding_zeroing_rows_that_are_zero() -> None:
    """Rows of the padding index were set to zero after the look-up; their weight was zero already."""
    embedding = nn.Embedding(100, 64, padding_idx=0)
    with torch.no_grad():
        for _ in range(3):
            words = torch.randint(1, 100, (128,))
            words[::3] = 0
            found = embedding.weight.index_select(0, words)
            # waste: redundant write, aten::masked_fill_
            found.masked_fill_((words == 0)[:, None], 0)
            found.sum(1)


def segmentation_gradient_filled_twice() -> None:
    """Still there: the gradient of a cross entropy on images is zeroed twice, inside the operator."""
    head = nn.Conv2d(8, 5, 1)
    for _ in range(3):
        logits = head(torch.randn(2, 8, 24, 24))
        labels = torch.randint(0, 5, (2, 24, 24))
        # deep waste: redundant write, aten::zero_
        loss = F.cross_entropy(logits, labels)
        loss.backward()

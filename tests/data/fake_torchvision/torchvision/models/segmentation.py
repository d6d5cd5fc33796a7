"""Tiny models of segmentation: a dict of logits for every pixel out."""

import torch
from torch import nn


class TinySegmenter(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """One convolution, with a second answer where an auxiliary loss is asked for."""

    def __init__(self, num_classes: int, aux_loss: bool) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, num_classes, 1)
        self.aux_loss = aux_loss

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(images)
        return {"out": logits, "aux": logits} if self.aux_loss else {"out": logits}


def fcn_tiny(
    *, weights: None, weights_backbone: None, num_classes: int = 21, aux_loss: bool = False
) -> TinySegmenter:
    assert weights is weights_backbone is None
    return TinySegmenter(num_classes, aux_loss)


def deeplabv3_tiny(*, weights: None, weights_backbone: None) -> TinySegmenter:
    assert weights is weights_backbone is None
    return TinySegmenter(21, False)

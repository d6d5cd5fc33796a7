"""Tiny models of classification, and the register of all models."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn


class GoogLeNetOutputs(NamedTuple):
    """What the real one gives in training: the answer and those of two other heads."""

    logits: Any
    aux_logits2: Any
    aux_logits1: Any


class TinyNet(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """One convolution and a head, with dropout as torchvision's have it."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5, heads: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, num_classes)
        self.heads = heads

    def forward(self, images: torch.Tensor) -> Any:
        logits = self.head(self.drop(self.stem(images).mean(dim=(2, 3))))
        if self.heads == 1 or not self.training:
            return logits
        return GoogLeNetOutputs(logits, logits, None)


def tiny_net(*, weights: None, **settings: Any) -> TinyNet:
    assert weights is None
    return TinyNet(**settings)


def googlenet(*, weights: None, init_weights: bool, **settings: Any) -> TinyNet:
    assert weights is None
    assert init_weights is False
    return TinyNet(heads=2, **settings)


def vit_tiny(*, weights: None, image_size: int, **settings: Any) -> TinyNet:
    assert weights is None
    if image_size % 16:
        raise ValueError("Input shape indivisible by patch size!")
    return TinyNet(**settings)


from torchvision.models import detection, segmentation  # noqa: E402  # they need what is above

_REGISTER: dict[str, Callable[..., Any]] = {
    "tiny_net": tiny_net,
    "googlenet": googlenet,
    "vit_tiny": vit_tiny,
    "maskrcnn_tiny": detection.maskrcnn_tiny,
    "keypointrcnn_tiny": detection.keypointrcnn_tiny,
    "fcn_tiny": segmentation.fcn_tiny,
    "deeplabv3_tiny": segmentation.deeplabv3_tiny,
    "tiny_video": tiny_net,
}


def list_models(module: ModuleType | None = None) -> list[str]:
    names = sorted(_REGISTER)
    if module is None:
        return names
    return [n for n in names if n in vars(module) and vars(module)[n] is _REGISTER[n]]


def get_model_builder(name: str) -> Callable[..., Any]:
    return _REGISTER[name]

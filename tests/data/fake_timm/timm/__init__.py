"""A stand-in for the timm package: two models and the functions that the suite uses."""

import torch
from torch import nn

from timm import data, models

__all__ = ["create_model", "data", "list_models", "models"]
__version__ = "0.0-fake"

_INPUT_SIZES = {"tiny_net": (3, 32, 32), "tiny_distilled": (3, 48, 40)}


class DropPath(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """As timm's: leaves out the whole of its input by chance; here only its probability counts."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.5

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values


class TinyNet(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    """One convolution and a head; the distilled kind gives two answers in training, as timm's do."""

    def __init__(self, num_classes: int, drop_rate: float, distilled: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.distilled = distilled
        self.stem = nn.Conv2d(3, 8, 3)
        self.drop = nn.Dropout(drop_rate)
        self.path = DropPath()
        self.head = nn.Linear(8, num_classes or 4)

    def forward(self, images: torch.Tensor) -> object:
        logits = self.head(self.drop(self.stem(images).mean(dim=(2, 3))))
        return (logits, logits * 2) if self.distilled and self.training else logits


def list_models() -> list[str]:
    return list(_INPUT_SIZES)


def create_model(
    name: str,
    pretrained: bool = False,
    in_chans: int = 3,
    drop_rate: float = 0.5,
    num_classes: int = 10,
) -> TinyNet:
    assert not pretrained
    assert in_chans == 3
    architecture = models.get_deprecated_models().get(name) or name.partition(".")[0]
    if architecture not in _INPUT_SIZES:
        raise RuntimeError(f"Unknown model ({name})")
    model = TinyNet(num_classes, drop_rate, architecture == "tiny_distilled")
    model.default_cfg = {"input_size": _INPUT_SIZES[architecture]}
    return model

"""Residual networks of 18 to 152 layers for images (He et al., 2015, "Deep Residual Learning")."""

from typing import Any, Dict, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.built import Built, CannotBuild
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices

STAGES = 4


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    widening = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, images: Any) -> Any:
        """The images one block further."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = self.second_norm(self.second(hidden))
        return functional.relu(hidden + self.shortcut(images))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, the last of which widens; the stride is in the middle."""

    widening = 4

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        narrow = outputs // self.widening
        self.first = nn.Conv2d(inputs, narrow, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(narrow)
        self.second = nn.Conv2d(narrow, narrow, 3, stride=stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(narrow)
        self.third = nn.Conv2d(narrow, outputs, 1, bias=False)
        self.third_norm = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, images: Any) -> Any:
        """The images one block further."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = functional.relu(self.second_norm(self.second(hidden)))
        hidden = self.third_norm(self.third(hidden))
        return functional.relu(hidden + self.shortcut(images))


DEPTHS: Dict[int, Tuple[Any, Tuple[int, ...]]] = {
    18: (Block, (2, 2, 2, 2)),
    34: (Block, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
"""Weighted layers -> kind of block, blocks in each stage."""


class ResNet(nn.Module):
    """A 7x7 stem, four stages of blocks, and a linear head."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        kind, counts = DEPTHS[layers]
        blocks = []
        inputs = width
        for stage in range(STAGES):
            outputs = width * 2**stage * kind.widening
            for index in range(counts[stage]):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(kind(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Any) -> Any:
        """Logits."""
        hidden = self.blocks(self.stem(images))
        return self.head(hidden.mean(dim=(2, 3)))


def _shortcut(inputs: int, outputs: int, stride: int) -> Any:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


def make(choices: Choices, device: Any) -> Built:
    """The network with random images and classes."""
    layers, size, classes = choices["layers"], choices["size"], choices["classes"]
    if layers not in DEPTHS:
        raise CannotBuild(
            f"the parameter layers of {choices.label} is {layers}",
            hint="give layers one of " + ", ".join(map(str, DEPTHS)),
        )
    module = ResNet(layers, choices["width"], classes)
    images = torch.randn(choices.rows, 3, size, size)
    targets = torch.randint(classes, (choices.rows,))
    return Built(
        module,
        (images.to(device),),
        loss=losses.cross_entropy(targets.to(device)),
        loss_said="cross-entropy",
        optimizer=losses.sgd(1e-3),
    )

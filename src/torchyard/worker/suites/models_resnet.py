"""A residual network of 18 layers for images (He et al., 2015, "Deep Residual Learning")."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.built import Built
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices

BLOCKS_PER_STAGE = 2
STAGES = 4


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: Any = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, images: Any) -> Any:
        """The images one block further."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = self.second_norm(self.second(hidden))
        return functional.relu(hidden + self.shortcut(images))


class ResNet(nn.Module):
    """A 7x7 stem, four stages of two blocks, and a linear head: 18 weighted layers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = []
        inputs = width
        for stage in range(STAGES):
            outputs = width * 2**stage
            for index in range(BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Block(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Any) -> Any:
        """Logits."""
        hidden = self.blocks(self.stem(images))
        return self.head(hidden.mean(dim=(2, 3)))


def make(choices: Choices, device: Any) -> Built:
    """The network with random images and classes."""
    size, classes = choices["size"], choices["classes"]
    module = ResNet(choices["width"], classes)
    images = torch.randn(choices.rows, 3, size, size)
    targets = torch.randint(classes, (choices.rows,))
    return Built(
        module,
        (images.to(device),),
        loss=losses.cross_entropy(targets.to(device)),
        loss_said="cross-entropy",
        optimizer=losses.sgd(1e-3),
    )

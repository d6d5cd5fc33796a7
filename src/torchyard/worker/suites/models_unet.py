"""A U-Net over images (Ronneberger et al., 2015): down, up, and a bridge at every size."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.built import Built
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import Choices, require


def _double(inputs: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """`depth` halvings of the image, as many doublings, and the bridges between them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.enter = _double(3, width)
        self.down = nn.ModuleList(_double(each, 2 * each) for each in widths)
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(2 * each, each, 2, stride=2) for each in widths[::-1]
        )
        self.up = nn.ModuleList(_double(2 * each, each) for each in widths[::-1])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: Any) -> Any:
        """One value per pixel."""
        hidden = self.enter(images)
        bridges = []
        for down in self.down:
            bridges.append(hidden)
            hidden = down(functional.max_pool2d(hidden, 2))
        for widen, up in zip(self.widen, self.up):
            hidden = up(torch.cat([bridges.pop(), widen(hidden)], dim=1))
        return self.head(hidden)


def make(choices: Choices, device: Any) -> Built:
    """The network with random images."""
    size, depth = choices["size"], choices["depth"]
    step = 2**depth
    require(
        size % step == 0,
        choices.label,
        f"size {size} cannot be halved {depth} times",
        f"give size a multiple of {step}",
    )
    module = UNet(choices["width"], depth)
    images = torch.randn(choices.rows, 3, size, size)
    return Built(
        module,
        (images.to(device),),
        loss=losses.mean_square,
        loss_said="mean of squares",
        optimizer=losses.sgd(1e-3),
    )

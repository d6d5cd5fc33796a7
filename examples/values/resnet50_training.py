"""Training steps of a ResNet-50 on random images.

    torchyard values --deep examples/values/resnet50_training.py --size 64 --batch 2

Needs torch and nothing else: the network is written out here.
"""

import argparse

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Narrow channels, blocks and stride of each stage."""
WIDENING = 4


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, around which the input is added."""

    def __init__(self, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        outputs = narrow * WIDENING
        self.conv1 = nn.Conv2d(inputs, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = nn.Conv2d(narrow, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block further."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet50(nn.Module):
    """The network of He et al., 2015, with the stride in the 3x3 convolutions."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inputs = 64
        for narrow, count, stride in STAGES:
            for number in range(count):
                blocks.append(Bottleneck(inputs, narrow, stride if number == 0 else 1))
                inputs = narrow * WIDENING
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.blocks(x))
        return self.fc(torch.flatten(x, 1))


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser(description="Train a ResNet-50 on random images.")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="of images; ImageNet's is 224")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = ResNet50()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(given.steps):
        images = torch.randn(given.batch, 3, given.size, given.size)
        labels = torch.randint(0, 1000, (given.batch,))
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

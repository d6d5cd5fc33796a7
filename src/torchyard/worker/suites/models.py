"""The suite `models`: small networks of common architectures, without extra packages.

Residual networks (He et al., 2015), a U-Net (Ronneberger et al., 2015), a BERT-like encoder, a GPT-2-like decoder and
an LSTM; those for speech, diffusion and images with text are in `modalities`.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker import catalog
from torchyard.worker.catalog.entry import PHASES
from torchyard.worker.suites import modalities, training
from torchyard.worker.suites.choices import Choices, choose, require
from torchyard.worker.suites.generation import (
    GptPhase,
    Lengths,
    build_phase,
    refuse_generation,
)
from torchyard.worker.suites.transformer import require_whole_heads, transformer_blocks
from torchyard.worker.workload import BuiltWorkload, CannotBuild


class TransformerEncoder(nn.Module):
    """Embedding with learned positions, blocks with full attention, mean, linear head."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        self.positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.blocks = transformer_blocks(choices, causal=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, choices["classes"])

    def forward(self, tokens: Any) -> Any:
        """Return the logits."""
        hidden = self.blocks(self.embedding(tokens) + self.positions)
        return self.head(self.norm(hidden).mean(dim=1))


def _classifier(
    module: Any, inputs: Any, targets: Any, optimizer: Any, device: Any
) -> BuiltWorkload:
    """Return a network that is trained with the cross-entropy of its logits."""
    return BuiltWorkload(
        module,
        (inputs.to(device),),
        loss=training.cross_entropy(targets.to(device)),
        loss_name="cross-entropy",
        optimizer=optimizer,
    )


def make_encoder(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random tokens and classes."""
    require_whole_heads(choices)
    module = TransformerEncoder(choices)
    tokens = torch.randint(choices["vocabulary"], (choices.rows, choices["length"]))
    targets = torch.randint(choices["classes"], (choices.rows,))
    return _classifier(module, tokens, targets, training.adamw(1e-4), device)


class Gpt(nn.Module):
    """Embedding with learned positions, blocks with causal attention, head tied to the embedding."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.blocks = transformer_blocks(choices, causal=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, choices["vocabulary"], bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        """Return the logits of the next token at every position."""
        hidden = self.blocks(self.embedding(tokens) + self.positions)
        return self.head(self.norm(hidden))


def make_gpt(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random tokens; the target of each token is the next one."""
    require_whole_heads(choices)
    module = Gpt(choices)
    text = torch.randint(choices["vocabulary"], (choices.rows, choices["length"] + 1))
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return _classifier(module, tokens, targets, training.adamw(1e-4), device)


class Lstm(nn.Module):
    """Embedding, stacked LSTM, linear head on the last position."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width = choices["width"]
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        self.lstm = nn.LSTM(width, width, num_layers=choices["layers"], batch_first=True)
        self.head = nn.Linear(width, choices["classes"])

    def forward(self, tokens: Any) -> Any:
        """Return the logits."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden[:, -1])


def make_lstm(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random tokens and classes."""
    module = Lstm(choices)
    tokens = torch.randint(choices["vocabulary"], (choices.rows, choices["length"]))
    targets = torch.randint(choices["classes"], (choices.rows,))
    return _classifier(module, tokens, targets, training.sgd(1e-3), device)


STAGES = 4


class Block(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    widening = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, images: Any) -> Any:
        """Apply the block to the images."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = self.second_norm(self.second(hidden))
        return functional.relu(hidden + self.shortcut(images))


class Bottleneck(nn.Module):
    """A 1x1, a strided 3x3 and a widening 1x1 convolution with a residual connection."""

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
        """Apply the block to the images."""
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
        """Return the logits."""
        hidden = self.blocks(self.stem(images))
        return self.head(hidden.mean(dim=(2, 3)))


def _shortcut(inputs: int, outputs: int, stride: int) -> Any:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


def make_resnet(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random images and classes."""
    layers, size, classes = choices["layers"], choices["size"], choices["classes"]
    if layers not in DEPTHS:
        raise CannotBuild(
            f"invalid parameter layers of {choices.label}: {layers}",
            hint="give layers one of " + ", ".join(map(str, DEPTHS)),
        )
    module = ResNet(layers, choices["width"], classes)
    images = torch.randn(choices.rows, 3, size, size)
    targets = torch.randint(classes, (choices.rows,))
    return _classifier(module, images, targets, training.sgd(1e-3), device)


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
    """A U-Net with `depth` downsampling and upsampling stages and skip connections."""

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
        """Return one value per pixel."""
        hidden = self.enter(images)
        skipped = []
        for down in self.down:
            skipped.append(hidden)
            hidden = down(functional.max_pool2d(hidden, 2))
        for widen, up in zip(self.widen, self.up):
            hidden = up(torch.cat([skipped.pop(), widen(hidden)], dim=1))
        return self.head(hidden)


def make_unet(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random images."""
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
    return BuiltWorkload(
        module,
        (images.to(device),),
        loss=training.mean_square,
        loss_name="mean of squares",
        optimizer=training.sgd(1e-3),
    )


MAKERS: Dict[str, Callable[[Choices, Any], BuiltWorkload]] = {
    "resnet": make_resnet,
    "transformer-encoder": make_encoder,
    "unet": make_unet,
    "lstm": make_lstm,
    "gpt": make_gpt,
    "speech": modalities.make_speech,
    "diffusion": modalities.make_diffusion,
    "vision-language": modalities.make_vision_language,
}


def names() -> List[str]:
    """Return the names of all models."""
    return [entry.name for entry in catalog.MODELS]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build one model; random numbers come from the CPU, so that every device gets the same ones."""
    if mode in PHASES and name == "gpt":
        return _generating_gpt(mode, batch_size, dict(parameters), device)
    refuse_generation("models/" + name, parameters, mode)
    choices = choose("models", name, mode, batch_size, parameters)
    built = MAKERS[name](choices, device)
    built.module.to(device)
    return built


def _generating_gpt(
    mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build a phase of generation; prompt and generated text determine the length."""
    lengths = Lengths("models/gpt", parameters)
    if "length" in parameters:
        raise CannotBuild(
            f"models/gpt: the parameter length has no effect in mode {mode}",
            hint="give prompt and generate",
        )
    choices = choose("models", "gpt", mode, batch_size, {**parameters, "length": lengths.capacity})
    require_whole_heads(choices)
    phase = GptPhase(Gpt(choices), lengths)
    return build_phase(phase, mode, lengths, choices.rows, choices["vocabulary"], device)

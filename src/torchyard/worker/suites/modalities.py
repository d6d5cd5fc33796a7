"""Speech, images and text: small models of the suite `models` for modalities other than text alone.

- an encoder-decoder over a spectrogram, as in Whisper (Radford et al., 2022);
- the noise prediction of one step of latent diffusion (Rombach et al., 2021): a U-Net with embedded timesteps and
  cross-attention to a text;
- image and text encoders trained with a contrastive loss, as in CLIP (Radford et al., 2021).
"""

import math
from typing import Any, List

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites import training
from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.transformer import (
    CrossAttention,
    TransformerBlock,
    require_whole_heads,
    transformer_blocks,
)
from torchyard.worker.workload import BuiltWorkload

NORM_GROUPS = 8
LATENT_CHANNELS = 4
PERIODS = 10_000.0
STEPS = 1000
"""Timesteps of the diffusion process."""


def sinusoids(positions: Any, width: int) -> Any:
    """Return sines and cosines of the positions, with periods from 2 pi to 10000 times that."""
    half = width // 2
    rates = torch.exp(-math.log(PERIODS) / half * torch.arange(half, device=positions.device))
    angles = positions[:, None] * rates[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder, and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.cross = CrossAttention(width, heads, width)
        self.block = TransformerBlock(width, heads, causal=True)

    def forward(self, tokens: Any, context: Any) -> Any:
        """Apply the layer to the tokens."""
        return self.block(self.cross(tokens, context))


class SpeechModel(nn.Module):
    """Two convolutions over a spectrogram, an encoder, and a decoder of text tokens."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width, heads = choices["width"], choices["heads"]
        self.first = nn.Conv1d(choices["mels"], width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        places = torch.arange((choices["frames"] + 1) // 2, dtype=torch.float32)
        self.register_buffer("places", sinusoids(places, width))
        self.encoder = transformer_blocks(choices, causal=False)
        self.encoder_norm = nn.LayerNorm(width)
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.decoder = nn.ModuleList(DecoderBlock(width, heads) for _ in range(choices["layers"]))
        self.decoder_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, choices["vocabulary"], bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, spectrogram: Any, tokens: Any) -> Any:
        """Return the logits of the next token at every position."""
        sound = functional.gelu(self.first(spectrogram))
        sound = functional.gelu(self.second(sound)).transpose(1, 2)
        context = self.encoder_norm(self.encoder(sound + self.places))
        hidden = self.embedding(tokens) + self.positions
        for block in self.decoder:
            hidden = block(hidden, context)
        return self.head(self.decoder_norm(hidden))


def make_speech(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with a random spectrogram and random tokens."""
    require_whole_heads(choices)
    require(
        choices["width"] % 2 == 0, choices.label, "width is odd", "give width a multiple of two"
    )
    module = SpeechModel(choices)
    spectrogram = torch.randn(choices.rows, choices["mels"], choices["frames"])
    text = torch.randint(choices["vocabulary"], (choices.rows, choices["length"] + 1))
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return BuiltWorkload(
        module,
        (spectrogram.to(device), tokens.to(device)),
        loss=training.cross_entropy(targets.to(device)),
        loss_name="cross-entropy",
        optimizer=training.adamw(1e-4),
    )


class ResidualBlock(nn.Module):
    """Two normalised convolutions with the embedded timestep added between them."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(NORM_GROUPS, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.second_norm = nn.GroupNorm(NORM_GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, images: Any, time: Any) -> Any:
        """Apply the block to the images."""
        hidden = self.first(functional.silu(self.first_norm(images)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        hidden = self.second(functional.silu(self.second_norm(hidden)))
        return hidden + self.shortcut(images)


class SpatialTransformer(nn.Module):
    """Attention of every pixel to all pixels and to a text, added to the images."""

    def __init__(self, channels: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(NORM_GROUPS, channels)
        self.block = TransformerBlock(channels, heads, causal=False)
        self.cross = CrossAttention(channels, heads, context_width)

    def forward(self, images: Any, text: Any) -> Any:
        """Apply the layer to the images."""
        batch, channels, height, width = images.shape
        pixels = self.norm(images).flatten(2).transpose(1, 2)
        pixels = self.cross(self.block(pixels), text)
        return images + pixels.transpose(1, 2).reshape(batch, channels, height, width)


class DiffusionUNet(nn.Module):
    """A U-Net that predicts the noise in latent images, given their timesteps and a text."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width, depth, heads = choices["width"], choices["depth"], choices["heads"]
        context = choices["context"]
        self.width = width
        time_width = 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        widths = [width * 2**level for level in range(depth + 1)]
        self.enter = nn.Conv2d(LATENT_CHANNELS, width, 3, padding=1)
        self.down = nn.ModuleList()
        self.down_text = nn.ModuleList()
        self.narrow = nn.ModuleList()
        for level in range(depth):
            inputs, outputs = widths[level], widths[level + 1]
            self.down.append(ResidualBlock(inputs, inputs, time_width))
            self.down_text.append(SpatialTransformer(inputs, heads, context))
            self.narrow.append(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1))
        self.middle = ResidualBlock(widths[-1], widths[-1], time_width)
        self.middle_text = SpatialTransformer(widths[-1], heads, context)
        self.widen = nn.ModuleList()
        self.up = nn.ModuleList()
        self.up_text = nn.ModuleList()
        for outputs, inputs in zip(widths[-2::-1], widths[:0:-1]):
            self.widen.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            self.up.append(ResidualBlock(2 * outputs, outputs, time_width))
            self.up_text.append(SpatialTransformer(outputs, heads, context))
        self.norm = nn.GroupNorm(NORM_GROUPS, width)
        self.head = nn.Conv2d(width, LATENT_CHANNELS, 3, padding=1)

    def forward(self, images: Any, timesteps: Any, text: Any) -> Any:
        """Return the predicted noise."""
        time = self.time(sinusoids(timesteps, self.width).to(images.dtype))
        hidden = self.enter(images)
        skipped: List[Any] = []
        for block, attention, narrow in zip(self.down, self.down_text, self.narrow):
            hidden = attention(block(hidden, time), text)
            skipped.append(hidden)
            hidden = narrow(hidden)
        hidden = self.middle_text(self.middle(hidden, time), text)
        for widen, block, attention in zip(self.widen, self.up, self.up_text):
            hidden = widen(functional.interpolate(hidden, scale_factor=2.0, mode="nearest"))
            hidden = block(torch.cat([skipped.pop(), hidden], dim=1), time)
            hidden = attention(hidden, text)
        return self.head(functional.silu(self.norm(hidden)))


def make_diffusion(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random latent images, timesteps, text and noise."""
    require_whole_heads(choices)
    size, depth, step = choices["size"], choices["depth"], 2 ** choices["depth"]
    require(
        size % step == 0,
        choices.label,
        f"size {size} cannot be halved {depth} times",
        f"give size a multiple of {step}",
    )
    require(
        choices["width"] % NORM_GROUPS == 0,
        choices.label,
        f"width {choices['width']} is not a multiple of {NORM_GROUPS}",
        f"give width a multiple of {NORM_GROUPS}",
    )
    module = DiffusionUNet(choices)
    shape = (choices.rows, LATENT_CHANNELS, size, size)
    images, noise = torch.randn(shape), torch.randn(shape).to(device)
    timesteps = torch.randint(STEPS, (choices.rows,))
    text = torch.randn(choices.rows, choices["length"], choices["context"])
    return BuiltWorkload(
        module,
        (images.to(device), timesteps.to(device), text.to(device)),
        loss=lambda output: functional.mse_loss(output, noise.to(output.dtype)),
        loss_name="mean squared error",
        optimizer=training.adamw(1e-4),
    )


class VisionLanguageModel(nn.Module):
    """Encoders of images and texts, compared by the cosines of their embeddings."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        width, patch = choices["width"], choices["patch"]
        patches = (choices["size"] // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.image_token = nn.Parameter(torch.randn(width) * 0.02)
        self.image_positions = nn.Parameter(torch.randn(patches + 1, width) * 0.02)
        self.image_blocks = transformer_blocks(choices, causal=False)
        self.image_norm = nn.LayerNorm(width)
        self.image_head = nn.Linear(width, choices["embedding"], bias=False)
        self.embedding = nn.Embedding(choices["vocabulary"], width)
        self.text_positions = nn.Parameter(torch.randn(choices["length"], width) * 0.02)
        self.text_blocks = transformer_blocks(choices, causal=True)
        self.text_norm = nn.LayerNorm(width)
        self.text_head = nn.Linear(width, choices["embedding"], bias=False)
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Any, tokens: Any) -> Any:
        """Return the scaled cosines of every image with every text."""
        pixels = self.patches(images).flatten(2).transpose(1, 2)
        first = self.image_token.expand(images.shape[0], 1, -1)
        hidden = torch.cat([first, pixels], dim=1) + self.image_positions
        image = self.image_head(self.image_norm(self.image_blocks(hidden)[:, 0]))
        hidden = self.text_blocks(self.embedding(tokens) + self.text_positions)
        text = self.text_head(self.text_norm(hidden[:, -1]))
        image, text = functional.normalize(image, dim=-1), functional.normalize(text, dim=-1)
        return self.temperature.exp() * image @ text.t()


def _contrastive_loss(cosines: Any) -> Any:
    """Return the cross-entropy of the right pairs, over rows and over columns."""
    right = torch.arange(cosines.shape[0], device=cosines.device)
    rows = functional.cross_entropy(cosines, right)
    return (rows + functional.cross_entropy(cosines.t(), right)) / 2


def make_vision_language(choices: Choices, device: Any) -> BuiltWorkload:
    """Build the network with random images and texts; image i belongs to text i."""
    require_whole_heads(choices)
    size, patch = choices["size"], choices["patch"]
    require(
        size % patch == 0,
        choices.label,
        f"size {size} is not a multiple of patch {patch}",
        "give size a multiple of patch",
    )
    module = VisionLanguageModel(choices)
    images = torch.randn(choices.rows, 3, size, size)
    tokens = torch.randint(choices["vocabulary"], (choices.rows, choices["length"]))
    return BuiltWorkload(
        module,
        (images.to(device), tokens.to(device)),
        loss=_contrastive_loss,
        loss_name="contrastive",
        optimizer=training.adamw(1e-4),
    )

"""No dropout in image models: what they draw at random while they train, no two backends draw alike.

Modules are known by the names of their classes, because timm and torchvision each have their own,
and neither need be installed. Knows no model.
"""

from typing import Any

from torch import nn

# Whole layers or parts of images left out by chance, in torchvision and in timm.
CHANCE = (
    "StochasticDepth",
    "DropPath",
    "DropBlock2d",
    "DropBlock3d",
    "PatchDropout",
    "PatchDropoutWithIndices",
)
PROBABILITIES = ("p", "drop_prob", "prob", "drop_rate")


def take_chance_out(module: Any) -> Any:
    """Set every probability of leaving something out to 0; the module itself."""
    for part in module.modules():
        left_out = isinstance(part, nn.modules.dropout._DropoutNd)
        if left_out or type(part).__name__ in CHANCE:
            for name in PROBABILITIES:
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, 0.0)
        elif isinstance(getattr(part, "drop_rate", None), float):
            part.drop_rate = 0.0  # given to the function instead of a module
    return module

"""Which rounding the numbers of a variant go through: its precision, its options, its device."""

from typing import Any

import torch

COARSER = ("float32", "tf32", "float16", "amp-float16", "amp", "bfloat16")
"""From fine to coarse. `tf32` is float32 with products of operands rounded to ten bits, `amp` autocast
to bfloat16 with float32 weights, `amp-float16` the same with float16."""


def coarser(one: str, other: str) -> str:
    """The coarser of two roundings."""
    return max(one, other, key=COARSER.index)


def rounding_of(side: Any) -> str:
    """What the numbers of a variant may be rounded to."""
    if side.precision == "amp":
        return "amp" if torch.device(side.device).type == "cpu" else "amp-float16"
    if side.precision != "float32":
        return str(side.precision)
    wanted = side.options.get("matmul-precision")
    if wanted == "medium":
        return "amp"
    if wanted == "high" or side.options.get("tf32"):
        return "tf32"
    return _by_default(side.device, side.model.module)


def _by_default(device: str, module: Any) -> str:
    """Torch lets cuDNN round the operands of float32 convolutions to TF32 unless told otherwise.

    Which convolutions it does that to changes with the layout that a compiler chooses.
    """
    if not device.startswith("cuda"):
        return "float32"
    convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for part in module.modules())
    allowed = (convolves and torch.backends.cudnn.allow_tf32) or (
        torch.backends.cuda.matmul.allow_tf32
    )
    if not allowed:
        return "float32"
    index = torch.device(device).index
    return "tf32" if torch.cuda.get_device_capability(index) >= (8, 0) else "float32"

"""Convolutions, plain, grouped, dilated and transposed, in one to three dimensions."""

from typing import Any, Callable, List, Sequence

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional."
_DOUBLE = torch.float64


def _of(image: Sequence[int], kernel: Sequence[int], bias: int = 0) -> Callable[[Draw], List[Any]]:
    def make(draw: Draw) -> List[Any]:
        made = [draw.learned(*image), draw.learned(*kernel)]
        return made + ([draw.learned(bias)] if bias else [])

    return make


def _double(image: Sequence[int], kernel: Sequence[int]) -> Callable[[Draw], List[Any]]:
    return lambda draw: [draw.learned(*image, dtype=_DOUBLE), draw.learned(*kernel, dtype=_DOUBLE)]


CASES: List[Case] = [
    case("conv1d", _F + "conv1d", _of((4, 16, 512), (32, 16, 5), 32)),
    case("conv1d.no_bias", _F + "conv1d", _of((4, 16, 512), (32, 16, 5))),
    case("conv2d", _F + "conv2d", _of((2, 16, 32, 32), (32, 16, 3, 3), 32), padding=1),
    case("conv2d.no_bias", _F + "conv2d", _of((2, 16, 32, 32), (32, 16, 3, 3))),
    case("conv2d.stride", _F + "conv2d", _of((2, 16, 64, 64), (32, 16, 3, 3), 32), stride=2),
    case("conv2d.dilation", _F + "conv2d", _of((2, 16, 32, 32), (32, 16, 3, 3)), dilation=2),
    case("conv2d.one_by_one", _F + "conv2d", _of((2, 32, 32, 32), (64, 32, 1, 1), 64)),
    case("conv2d.groups", _F + "conv2d", _of((2, 16, 32, 32), (32, 4, 3, 3)), groups=4),
    case("conv2d.depthwise", _F + "conv2d", _of((2, 32, 32, 32), (32, 1, 3, 3), 32), groups=32),
    case("conv2d.same", _F + "conv2d", _of((2, 16, 32, 32), (32, 16, 3, 3)), padding="same"),
    case("conv2d.double", _F + "conv2d", _double((2, 8, 32, 32), (16, 8, 3, 3))),
    case(
        "conv2d.channels_last",
        lambda x, w: torch.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        _of((2, 16, 32, 32), (32, 16, 3, 3)),
    ),
    case("conv3d", _F + "conv3d", _of((1, 8, 12, 24, 24), (16, 8, 3, 3, 3), 16)),
    case("conv3d.double", _F + "conv3d", _double((1, 4, 12, 16, 16), (8, 4, 3, 3, 3))),
    case("conv3d.depthwise", _F + "conv3d", _of((1, 16, 12, 24, 24), (16, 1, 3, 3, 3)), groups=16),
    case("conv_transpose1d", _F + "conv_transpose1d", _of((4, 16, 512), (16, 32, 5), 32), stride=2),
    case("conv_transpose2d", _F + "conv_transpose2d", _of((2, 16, 32, 32), (16, 32, 3, 3), 32)),
    case(
        "conv_transpose2d.stride",
        _F + "conv_transpose2d",
        _of((2, 16, 32, 32), (16, 32, 3, 3)),
        stride=2,
    ),
    case(
        "conv_transpose2d.double",
        _F + "conv_transpose2d",
        _double((2, 8, 24, 24), (8, 16, 3, 3)),
        stride=2,
    ),
    case(
        "conv_transpose3d", _F + "conv_transpose3d", _of((1, 8, 12, 16, 16), (8, 16, 3, 3, 3), 16)
    ),
    case(
        "conv_transpose3d.double",
        _F + "conv_transpose3d",
        _double((1, 4, 8, 16, 16), (4, 8, 3, 3, 3)),
    ),
    case(
        "conv_tbc",
        "conv_tbc",
        lambda d: [d.learned(128, 4, 32), d.learned(5, 32, 64), d.learned(64)],
    ),
    case("unfold", _F + "unfold", lambda d: [d.learned(2, 16, 32, 32)], kernel_size=3, padding=1),
    case(
        "fold",
        _F + "fold",
        lambda d: [d.learned(2, 16 * 9, 32 * 32)],
        output_size=32,
        kernel_size=3,
        padding=1,
    ),
    case(
        "linear",
        _F + "linear",
        lambda d: [d.learned(256, 128), d.learned(256, 128), d.learned(256)],
    ),
    case("linear.no_bias", _F + "linear", lambda d: [d.learned(256, 128), d.learned(256, 128)]),
    case(
        "linear.batched",
        _F + "linear",
        lambda d: [d.learned(8, 64, 128), d.learned(256, 128), d.learned(256)],
    ),
    case(
        "bilinear",
        _F + "bilinear",
        lambda d: [d.learned(256, 16), d.learned(256, 16), d.learned(64, 16, 16), d.learned(64)],
    ),
]

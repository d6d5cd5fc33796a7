"""Convolutions, pooling, upsampling and padding.

Convolutions are plain, grouped, dilated and transposed, in one to three dimensions. Gradients of
padding are sums into zeros (needed) or slices.
"""

from typing import Any, Callable, List, Sequence

import torch

from torchyard.worker.values.operator_cases import Case, Draw, case, function_case, learned

_F = "nn.functional."
_DOUBLE = torch.float64


def _of(image: Sequence[int], kernel: Sequence[int], bias: int = 0) -> Callable[[Draw], List[Any]]:
    def make(draw: Draw) -> List[Any]:
        made = [draw.learned(*image), draw.learned(*kernel)]
        return made + ([draw.learned(bias)] if bias else [])

    return make


def _double(image: Sequence[int], kernel: Sequence[int]) -> Callable[[Draw], List[Any]]:
    return lambda draw: [draw.learned(*image, dtype=_DOUBLE), draw.learned(*kernel, dtype=_DOUBLE)]


CONV_CASES: List[Case] = [
    function_case("conv1d", _of((4, 16, 512), (32, 16, 5), 32)),
    function_case("conv1d.no_bias", _of((4, 16, 512), (32, 16, 5))),
    function_case("conv2d", _of((2, 16, 32, 32), (32, 16, 3, 3), 32), padding=1),
    function_case("conv2d.no_bias", _of((2, 16, 32, 32), (32, 16, 3, 3))),
    function_case("conv2d.stride", _of((2, 16, 64, 64), (32, 16, 3, 3), 32), stride=2),
    function_case("conv2d.dilation", _of((2, 16, 32, 32), (32, 16, 3, 3)), dilation=2),
    function_case("conv2d.one_by_one", _of((2, 32, 32, 32), (64, 32, 1, 1), 64)),
    function_case("conv2d.groups", _of((2, 16, 32, 32), (32, 4, 3, 3)), groups=4),
    function_case("conv2d.depthwise", _of((2, 32, 32, 32), (32, 1, 3, 3), 32), groups=32),
    function_case("conv2d.same", _of((2, 16, 32, 32), (32, 16, 3, 3)), padding="same"),
    function_case("conv2d.double", _double((2, 8, 32, 32), (16, 8, 3, 3))),
    case(
        "conv2d.channels_last",
        lambda x, w: torch.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        _of((2, 16, 32, 32), (32, 16, 3, 3)),
    ),
    function_case("conv3d", _of((1, 8, 12, 24, 24), (16, 8, 3, 3, 3), 16)),
    function_case("conv3d.double", _double((1, 4, 12, 16, 16), (8, 4, 3, 3, 3))),
    function_case("conv3d.depthwise", _of((1, 16, 12, 24, 24), (16, 1, 3, 3, 3)), groups=16),
    function_case("conv_transpose1d", _of((4, 16, 512), (16, 32, 5), 32), stride=2),
    function_case("conv_transpose2d", _of((2, 16, 32, 32), (16, 32, 3, 3), 32)),
    function_case("conv_transpose2d.stride", _of((2, 16, 32, 32), (16, 32, 3, 3)), stride=2),
    function_case("conv_transpose2d.double", _double((2, 8, 24, 24), (8, 16, 3, 3)), stride=2),
    function_case("conv_transpose3d", _of((1, 8, 12, 16, 16), (8, 16, 3, 3, 3), 16)),
    function_case("conv_transpose3d.double", _double((1, 4, 8, 16, 16), (4, 8, 3, 3, 3))),
    case("conv_tbc", "conv_tbc", learned((128, 4, 32), (5, 32, 64), (64,))),
    function_case("unfold", learned((2, 16, 32, 32)), kernel_size=3, padding=1),
    function_case("fold", learned((2, 16 * 9, 32 * 32)), output_size=32, kernel_size=3, padding=1),
    function_case("linear", learned((256, 128), (256, 128), (256,))),
    function_case("linear.no_bias", learned((256, 128), (256, 128))),
    function_case("linear.batched", learned((8, 64, 128), (256, 128), (256,))),
    function_case("bilinear", learned((256, 16), (256, 16), (64, 16, 16), (64,))),
]


def _unpooled(x: Any) -> Any:
    pooled, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    return torch.nn.functional.max_unpool2d(pooled, indices, 2)


def _unpooled3d(x: Any) -> Any:
    pooled, indices = torch.nn.functional.max_pool3d(x, 2, return_indices=True)
    return torch.nn.functional.max_unpool3d(pooled, indices, 2)


def _up(name: str, make: Any, mode: str, **options: Any) -> Case:
    return case(
        "interpolate." + name, _F + "interpolate", make, scale_factor=2, mode=mode, **options
    )


def _grid(draw: Draw) -> List[Any]:
    grid = draw.between(-1.1, 1.1, 2, 64, 64, 2).requires_grad_()
    return [draw.learned(2, 8, 64, 64), grid]


_line = learned((4, 16, 1024))
_image = learned((2, 16, 64, 64))
_volume = learned((2, 4, 16, 32, 32))
POOL_CASES: List[Case] = [
    function_case("max_pool1d", _line, kernel_size=2),
    function_case("max_pool2d", _image, kernel_size=2),
    function_case("max_pool2d.overlap", _image, kernel_size=3, stride=1),
    function_case("max_pool2d.dilation", _image, kernel_size=3, dilation=2),
    function_case("max_pool3d", _volume, kernel_size=2),
    function_case("max_pool3d.overlap", _volume, kernel_size=3, stride=2),
    case("max_unpool2d", _unpooled, _image),
    case("max_unpool3d", _unpooled3d, _volume),
    function_case("avg_pool1d", _line, kernel_size=2),
    function_case("avg_pool2d", _image, kernel_size=2),
    function_case("avg_pool2d.overlap", _image, kernel_size=3, stride=1, padding=1),
    function_case("avg_pool2d.stride", _image, kernel_size=2, stride=3),
    function_case("avg_pool3d", _volume, kernel_size=2),
    function_case("avg_pool3d.overlap", _volume, kernel_size=3, stride=2),
    function_case("avg_pool3d.gaps", _volume, kernel_size=2, stride=3),
    function_case("lp_pool1d", _line, norm_type=2.0, kernel_size=2),
    function_case("lp_pool2d", _image, norm_type=2.0, kernel_size=2),
    function_case("adaptive_avg_pool1d", _line, output_size=100),
    function_case("adaptive_avg_pool2d", _image, output_size=7),
    function_case("adaptive_avg_pool2d.one", _image, output_size=1),
    function_case("adaptive_avg_pool3d", _volume, output_size=7),
    function_case("adaptive_max_pool1d", _line, output_size=100),
    function_case("adaptive_max_pool2d", _image, output_size=7),
    function_case("adaptive_max_pool3d", _volume, output_size=7),
    case(
        "fractional_max_pool2d",
        lambda x, samples: torch.nn.functional.fractional_max_pool2d(
            x, 2, output_size=30, _random_samples=samples
        ),
        lambda d: [d.learned(2, 16, 64, 64), d.between(0.0, 1.0, 2, 16, 2)],
    ),
    case(
        "fractional_max_pool3d",
        lambda x, samples: torch.nn.functional.fractional_max_pool3d(
            x, 2, output_size=(7, 15, 15), _random_samples=samples
        ),
        lambda d: [d.learned(2, 4, 16, 32, 32), d.between(0.0, 1.0, 2, 4, 3)],
    ),
    _up("nearest1d", _line, "nearest"),
    _up("linear1d", _line, "linear", align_corners=False),
    _up("nearest2d", _image, "nearest"),
    _up("nearest_exact2d", _image, "nearest-exact"),
    _up("bilinear2d", _image, "bilinear", align_corners=False),
    _up("bilinear2d.corners", _image, "bilinear", align_corners=True),
    _up("bicubic2d", _image, "bicubic", align_corners=False),
    _up("nearest3d", _volume, "nearest"),
    _up("trilinear3d", _volume, "trilinear", align_corners=False),
    function_case("interpolate.antialias", _image, size=(40, 40), mode="bilinear", antialias=True),
    function_case("pixel_shuffle", _image, upscale_factor=2),
    function_case("pixel_unshuffle", _image, downscale_factor=2),
    case(
        "channel_shuffle",
        "nn.functional.channel_shuffle",
        lambda d: [d.floats(2, 16, 64, 64)],
        groups=4,
    ),
    function_case("grid_sample", _grid, align_corners=False),
    function_case("grid_sample.nearest", _grid, mode="nearest", align_corners=False),
    function_case("grid_sample.bicubic", _grid, mode="bicubic", align_corners=False),
    function_case(
        "grid_sample.3d",
        lambda d: [d.learned(1, 4, 16, 16, 16), d.learned_between(-1.1, 1.1, 1, 16, 32, 32, 3)],
        align_corners=False,
    ),
    case(
        "affine_grid",
        lambda theta: torch.nn.functional.affine_grid(theta, [4, 3, 64, 64], align_corners=False),
        learned((4, 2, 3)),
    ),
]


_PAD = "nn.functional.pad"


_padded_line = learned((8, 32, 256))
PAD_CASES: List[Case] = [
    case("pad.constant", _PAD, _image, pad=(1, 2, 3, 4)),
    case("pad.constant_value", _PAD, _image, pad=(1, 2), value=0.5),
    case("pad.negative", _PAD, _image, pad=(-1, -2, 3, 4)),
    case("pad.reflect1d", _PAD, _padded_line, pad=(3, 4), mode="reflect"),
    case("pad.reflect2d", _PAD, _image, pad=(3, 4, 1, 2), mode="reflect"),
    case("pad.reflect3d", _PAD, _volume, pad=(1, 2, 3, 4, 2, 2), mode="reflect"),
    case("pad.replicate1d", _PAD, _padded_line, pad=(3, 4), mode="replicate"),
    case("pad.replicate2d", _PAD, _image, pad=(3, 4, 1, 2), mode="replicate"),
    case("pad.replicate3d", _PAD, _volume, pad=(1, 2, 3, 4, 2, 2), mode="replicate"),
    case("pad.circular", _PAD, _image, pad=(3, 4, 1, 2), mode="circular"),
]

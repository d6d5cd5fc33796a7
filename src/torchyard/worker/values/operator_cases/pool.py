"""Pooling, upsampling and sampling from grids."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional."


def _line(draw: Draw) -> List[Any]:
    return [draw.learned(4, 16, 1024)]


def _image(draw: Draw) -> List[Any]:
    return [draw.learned(2, 16, 64, 64)]


def _volume(draw: Draw) -> List[Any]:
    return [draw.learned(2, 4, 16, 32, 32)]


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


CASES: List[Case] = [
    case("max_pool1d", _F + "max_pool1d", _line, kernel_size=2),
    case("max_pool2d", _F + "max_pool2d", _image, kernel_size=2),
    case("max_pool2d.overlap", _F + "max_pool2d", _image, kernel_size=3, stride=1),
    case("max_pool2d.dilation", _F + "max_pool2d", _image, kernel_size=3, dilation=2),
    case("max_pool3d", _F + "max_pool3d", _volume, kernel_size=2),
    case("max_pool3d.overlap", _F + "max_pool3d", _volume, kernel_size=3, stride=2),
    case("max_unpool2d", _unpooled, _image),
    case("max_unpool3d", _unpooled3d, _volume),
    case("avg_pool1d", _F + "avg_pool1d", _line, kernel_size=2),
    case("avg_pool2d", _F + "avg_pool2d", _image, kernel_size=2),
    case("avg_pool2d.overlap", _F + "avg_pool2d", _image, kernel_size=3, stride=1, padding=1),
    case("avg_pool2d.stride", _F + "avg_pool2d", _image, kernel_size=2, stride=3),
    case("avg_pool3d", _F + "avg_pool3d", _volume, kernel_size=2),
    case("avg_pool3d.overlap", _F + "avg_pool3d", _volume, kernel_size=3, stride=2),
    case("avg_pool3d.gaps", _F + "avg_pool3d", _volume, kernel_size=2, stride=3),
    case("lp_pool1d", _F + "lp_pool1d", _line, norm_type=2.0, kernel_size=2),
    case("lp_pool2d", _F + "lp_pool2d", _image, norm_type=2.0, kernel_size=2),
    case("adaptive_avg_pool1d", _F + "adaptive_avg_pool1d", _line, output_size=100),
    case("adaptive_avg_pool2d", _F + "adaptive_avg_pool2d", _image, output_size=7),
    case("adaptive_avg_pool2d.one", _F + "adaptive_avg_pool2d", _image, output_size=1),
    case("adaptive_avg_pool3d", _F + "adaptive_avg_pool3d", _volume, output_size=7),
    case("adaptive_max_pool1d", _F + "adaptive_max_pool1d", _line, output_size=100),
    case("adaptive_max_pool2d", _F + "adaptive_max_pool2d", _image, output_size=7),
    case("adaptive_max_pool3d", _F + "adaptive_max_pool3d", _volume, output_size=7),
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
    case(
        "interpolate.antialias",
        _F + "interpolate",
        _image,
        size=(40, 40),
        mode="bilinear",
        antialias=True,
    ),
    case("pixel_shuffle", _F + "pixel_shuffle", _image, upscale_factor=2),
    case("pixel_unshuffle", _F + "pixel_unshuffle", _image, downscale_factor=2),
    case(
        "channel_shuffle",
        "nn.functional.channel_shuffle",
        lambda d: [d.floats(2, 16, 64, 64)],
        groups=4,
    ),
    case("grid_sample", _F + "grid_sample", _grid, align_corners=False),
    case("grid_sample.nearest", _F + "grid_sample", _grid, mode="nearest", align_corners=False),
    case("grid_sample.bicubic", _F + "grid_sample", _grid, mode="bicubic", align_corners=False),
    case(
        "grid_sample.3d",
        _F + "grid_sample",
        lambda d: [d.learned(1, 4, 16, 16, 16), d.learned_between(-1.1, 1.1, 1, 16, 32, 32, 3)],
        align_corners=False,
    ),
    case(
        "affine_grid",
        lambda theta: torch.nn.functional.affine_grid(theta, [4, 3, 64, 64], align_corners=False),
        lambda d: [d.learned(4, 2, 3)],
    ),
]

"""Padding: its gradients are sums into zeros (needed) or slices."""

from typing import Any, List

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional.pad"


def _line(draw: Draw) -> List[Any]:
    return [draw.learned(8, 32, 256)]


def _image(draw: Draw) -> List[Any]:
    return [draw.learned(2, 16, 64, 64)]


def _volume(draw: Draw) -> List[Any]:
    return [draw.learned(2, 4, 16, 32, 32)]


CASES: List[Case] = [
    case("pad.constant", _F, _image, pad=(1, 2, 3, 4)),
    case("pad.constant_value", _F, _image, pad=(1, 2), value=0.5),
    case("pad.negative", _F, _image, pad=(-1, -2, 3, 4)),
    case("pad.reflect1d", _F, _line, pad=(3, 4), mode="reflect"),
    case("pad.reflect2d", _F, _image, pad=(3, 4, 1, 2), mode="reflect"),
    case("pad.reflect3d", _F, _volume, pad=(1, 2, 3, 4, 2, 2), mode="reflect"),
    case("pad.replicate1d", _F, _line, pad=(3, 4), mode="replicate"),
    case("pad.replicate2d", _F, _image, pad=(3, 4, 1, 2), mode="replicate"),
    case("pad.replicate3d", _F, _volume, pad=(1, 2, 3, 4, 2, 2), mode="replicate"),
    case("pad.circular", _F, _image, pad=(3, 4, 1, 2), mode="circular"),
]

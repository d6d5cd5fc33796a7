"""Fourier transforms and windows over time."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


def _waves(draw: Draw) -> List[Any]:
    return [draw.learned(128, 256)]


def _complex(draw: Draw) -> List[Any]:
    return [draw.complexes(128, 256)]


CASES: List[Case] = [
    case("fft", "fft.fft", _complex),
    case("fft.longer", "fft.fft", _complex, n=300),
    case("ifft", "fft.ifft", _complex),
    case("rfft", "fft.rfft", _waves),
    case("irfft", "fft.irfft", _complex),
    case("hfft", "fft.hfft", _complex),
    case("fft2", "fft.fft2", _complex),
    case("rfft2", "fft.rfft2", _waves),
    case("irfft2", "fft.irfft2", _complex),
    case("fftshift", "fft.fftshift", _complex),
    case(
        "stft",
        lambda x, w: torch.stft(x, 128, 32, window=w, return_complex=True),
        lambda d: [d.learned(4, 8192), d.between(0.1, 1.0, 128)],
    ),
    case(
        "istft",
        lambda x, w: torch.istft(x, 128, 32, window=w),
        lambda d: [d.complexes(4, 65, 256), d.between(0.5, 1.0, 128)],
    ),
]

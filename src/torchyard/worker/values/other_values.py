"""Other values for arguments: numbers that a program does not use, in its own memory layout.

No NaN and no infinity: whatever they touch becomes one of them, and then nothing can be told apart.
"""

from typing import Tuple

import torch


def drawn(flat: torch.Tensor, source: torch.Generator, low: int, high: int) -> torch.Tensor:
    """Integers from low up to, and without, high."""
    return torch.randint(low, high, flat.shape, generator=source, device=flat.device)


def normal(flat: torch.Tensor, source: torch.Generator) -> None:
    """Numbers around 0."""
    flat.normal_(generator=source)


def extreme(flat: torch.Tensor, source: torch.Generator) -> None:
    """A fifth each of 0, -0, small, negative and large numbers, in random places."""
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    real.normal_(generator=source)
    kind = drawn(real, source, 0, 5)
    large = torch.finfo(real.dtype).max ** 0.25
    factors: Tuple[Tuple[int, float], ...] = ((0, 0.0), (1, -0.0), (2, 1 / large), (4, large))
    for which, factor in factors:
        chosen = kind == which
        if which < 2:
            real[chosen] = factor
        else:
            real[chosen] *= factor

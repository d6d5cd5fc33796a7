"""New input values of the same shapes, written in place. Runs inside the target.

With many draws a cached result cannot pass. Draw 0 has the values of the workload; in any other draw every
floating-point number is multiplied by 1, 1/2 or 1/4, which is exact in every data type and keeps signs, masks and
ranges. Integers are rotated within their tensor, unless they are sorted: offsets and positions have a structure.
The values depend only on the number of the draw, so processes of different targets get the same.
"""

import random
from typing import Any, List, Optional

import torch

ALL, FLOATS, NONE = "all", "floats", "none"
LEVELS = (ALL, FLOATS, NONE)
"""Which inputs are varied. Levels that make the baseline fail are not used."""
PATTERN = 65521
"""Length of the pattern of factors, repeated over longer tensors."""
_FACTORS = torch.tensor([1.0, 0.5, 0.25, 0.5])


class InputDraws:
    """The original values of some tensors, and further draws of them."""

    def __init__(self, tensors: List[Any]) -> None:
        distinct = {id(tensor): tensor for tensor in tensors}
        self._tensors = [tensor for tensor in distinct.values() if _can_vary(tensor)]
        self._originals: Optional[List[Any]] = None

    def varied(self, level: str) -> List[Any]:
        """Return the tensors that a draw of this level changes."""
        if level == NONE:
            return []
        return [
            tensor
            for tensor in self._tensors
            if _is_float(tensor) or (level == ALL and not _is_structure(tensor))
        ]

    def apply(self, draw: int, level: str) -> None:
        """Write the values of a draw."""
        if draw == 0 and self._originals is None:
            return
        if self._originals is None:  # the current values are draw 0
            self._originals = [tensor.detach().clone() for tensor in self._tensors]
        chance = random.Random(draw)
        bits = bytearray(chance.getrandbits(8 * PATTERN).to_bytes(PATTERN, "little"))
        factors = _FACTORS[(torch.frombuffer(bits, dtype=torch.uint8) & 3).long()]
        turn = chance.random()
        with torch.no_grad():
            for tensor, original in zip(self._tensors, self._originals):
                if draw == 0 or level == NONE:
                    tensor.copy_(original)
                elif _is_float(tensor):
                    tensor.copy_(_scaled(original, factors))
                elif level == ALL and not _is_structure(original):
                    tensor.copy_(_rotated(original, turn))
                else:
                    tensor.copy_(original)


def _can_vary(tensor: Any) -> bool:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return False
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if any(step == 0 and size > 1 for size, step in zip(tensor.size(), tensor.stride())):
        return False
    # The 8-bit formats have no arithmetic.
    return not (_is_float(tensor) and tensor.element_size() < 2)


def _is_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _is_structure(tensor: Any) -> bool:
    """Whether integers are sorted along the last dimension, as offsets and masks are."""
    if tensor.numel() < 2 or tensor.dim() == 0:
        return True
    numbers = tensor.detach()
    numbers = numbers.to(torch.int8) if numbers.dtype is torch.bool else numbers
    if numbers.shape[-1] < 2:
        numbers = numbers.reshape(-1)
    before, after = numbers[..., :-1], numbers[..., 1:]
    return bool((before <= after).all()) or bool((before >= after).all())


def _scaled(original: Any, factors: Any) -> Any:
    flat = original.reshape(-1)
    dtype = original.real.dtype if original.is_complex() else original.dtype
    pattern = factors[: flat.numel()].to(device=original.device, dtype=dtype)
    whole = flat.numel() // pattern.numel()
    head = (flat[: whole * pattern.numel()].view(whole, -1) * pattern).reshape(-1)
    tail = flat[whole * pattern.numel() :]
    if tail.numel():
        head = torch.cat([head, tail * pattern[: tail.numel()]])
    return head.view(original.shape)


def _rotated(original: Any, turn: float) -> Any:
    flat = original.reshape(-1)
    step = 1 + int(turn * (flat.numel() - 1))
    return torch.roll(flat, step).view(original.shape)

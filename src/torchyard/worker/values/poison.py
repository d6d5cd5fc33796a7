"""Poisons: bits that nobody expects in memory that was just filled.

What is dead does not matter, so whatever is put there leaves every result as it was. One poison is
not enough: a NaN disappears in a comparison, a huge number in an infinite sum. Integers are left
alone, because a kernel may use them as positions in memory.
"""

from typing import Callable, Dict, List

import torch

from torchyard.worker.values.bits import bits_of

NOT_POISONED = "integer memory is not poisoned: it may hold positions in other memory"
_SEED = 1337

Poison = Callable[[torch.Tensor], None]


def poisons_for(dtype: torch.dtype) -> Dict[str, Poison]:
    """Name and how to put it there; empty when the type must not be poisoned."""
    if dtype.is_floating_point or dtype.is_complex:
        return {"NaN": _not_a_number, "a huge number": _huge, "random bits": _random_bits}
    if dtype is torch.bool:
        return {"the opposite": _opposite, "true and false in turn": _in_turn}
    if dtype is torch.uint8:
        return {"0 for 1 and 1 for 0": _opposite, "0 and 1 in turn": _in_turn}
    return {}


def put(poison: Poison, tensors: List[torch.Tensor]) -> bool:
    """Poison tensors; whether that changed any bit (a poison that is already there tests nothing)."""
    changed = False
    for tensor in tensors:
        if tensor.numel() == 0 or tensor.layout is not torch.strided:
            continue
        first = bits_of(tensor)[(0,) * bits_of(tensor).dim()]
        before = first.clone()
        poison(tensor)
        changed = changed or not torch.equal(before, first)
    return changed


def _not_a_number(tensor: torch.Tensor) -> None:
    tensor.fill_(float("nan"))


def _huge(tensor: torch.Tensor) -> None:
    tensor.fill_(torch.finfo(tensor.dtype).max / 4)


def _random_bits(tensor: torch.Tensor) -> None:
    bits = bits_of(tensor)
    source = torch.Generator(device=tensor.device)
    source.manual_seed(_SEED)
    limits = torch.iinfo(bits.dtype)
    drawn = torch.randint(
        limits.min, limits.max, bits.shape, generator=source, dtype=bits.dtype, device=bits.device
    )
    bits.copy_(drawn)


def _opposite(tensor: torch.Tensor) -> None:
    tensor.copy_(tensor == 0)


def _in_turn(tensor: torch.Tensor) -> None:
    first = bool(tensor[(0,) * tensor.dim()] != 0)
    turns = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2
    tensor.copy_(turns == int(first))

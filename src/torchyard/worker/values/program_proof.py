"""Whether one call of a wasted operator is wasted for every input of its shapes. No trials here.

Joins what the operators do by definition (`semantics`), what the source of the program says of the code
around them (`straight_line`), and what else could reach the memory.
"""

import sys
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.semantics import overwrites_all
from torchyard.worker.values.storages import storage_key, untyped_storage
from torchyard.worker.values.straight_line import (
    PRIVATE,
    Claim,
    fill_is_overwritten,
    fill_is_repeated,
    is_identity,
)
from torchyard.worker.values.untouched import why_not_now

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
OVERWRITTEN = (
    "%s writes every element and reads none, and the code from the fill to it reaches it always"
)
IN_PIECES = (
    "the pieces that are written cover it, and the code from the fill to them does nothing else"
)
REPEATED = "the same constant was filled in, and no code between the two fills can reach the memory"
IDENTITY = "multiplying or dividing by one leaves every number as it is"


class Reason(NamedTuple):
    """Why a call is wasted."""

    text: str
    by_shape: bool = False
    in_pieces: bool = False
    shared: bool = False
    """Whether it would not hold if code that is not seen ran at the same time."""


def dead_fill(
    fill: Observation, frame: Optional[FrameType], func: Any, args: Any, kwargs: Any
) -> Optional[Reason]:
    """Why what a fill wrote is never read; None when that is not certain."""
    operator = operator_of(func)
    tensor = _written(fill, func, args, kwargs)
    if tensor is None or fill.site is None or frame is None or not overwrites_all(func, operator):
        return None
    if why_not_now() is not None:
        return None
    bare = operator.name.split("::")[1]
    claim = fill_is_overwritten(fill.site, frame, bare)
    if claim is None or not _unreachable(claim, fill, tensor):
        return None
    whole = tensor.numel() * tensor.element_size() == fill.size_bytes
    if not whole and not claim.in_pieces:
        return None
    text = IN_PIECES if claim.in_pieces else OVERWRITTEN % bare
    return Reason(text, claim.by_shape, claim.in_pieces, claim.how != PRIVATE)


def redundant(
    seen: Observation, frame: Optional[FrameType], func: Any, args: Any, kwargs: Any
) -> Optional[Reason]:
    """Why a write leaves every bit as it was; None when that is not certain."""
    operator = operator_of(func)
    tensor = _written(seen, func, args, kwargs)
    if frame is None or tensor is None or why_not_now() is not None:
        return None
    fill = seen.was_fill
    if operator.fills and fill is not None and fill.site is not None and seen.whole:
        claim = fill_is_repeated(fill.site, frame)
        if claim is None or not _unreachable(claim, fill, tensor):
            return None
        return Reason(REPEATED, shared=claim.how != PRIVATE)
    bare = operator.name.split("::")[1]
    if tensor.is_complex() or tensor.requires_grad or not is_identity(frame, bare):
        return None
    return Reason(IDENTITY) if _keeps_denormals(tensor) else None


def _written(seen: Observation, func: Any, args: Any, kwargs: Any) -> Optional[torch.Tensor]:
    """The tensor in the memory in question that the operator wrote, if it is a plain one."""
    for tensor in written_tensors(operator_of(func), args, kwargs):
        if type(tensor) in _TENSORS and storage_key(tensor) == seen.state.key:
            return tensor
    return None


def _unreachable(claim: Claim, fill: Observation, tensor: torch.Tensor) -> bool:
    """Whether nothing that runs at the same time, or holds the memory, can read the fill."""
    if claim.how == PRIVATE:
        return fill.fresh
    if fill.state.outside or untyped_storage(tensor).is_shared():
        return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return False
    return not _other_threads() and not _saving_hooks()


def _other_threads() -> bool:
    """Whether Python code may run beside this."""
    return len(sys._current_frames()) > 1


def _saving_hooks() -> bool:
    """Whether operators call code of the program for each tensor that they keep for a backward."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:  # torch before 2.1 does not tell
        return torch.is_grad_enabled()
    return top(True) is not None


def _keeps_denormals(tensor: torch.Tensor) -> bool:
    """Whether arithmetic keeps the smallest numbers: `torch.set_flush_denormal` makes them zero."""
    if not tensor.is_floating_point():
        return True
    bits = torch.ones(1, dtype=_WORDS[tensor.element_size()], device=tensor.device)
    return bool(((bits.view(tensor.dtype) * 1).view(bits.dtype) == bits).all())

"""Whether two results are the same in every bit: NaN is like itself, -0.0 is not 0.0.

Knows tensors, and nothing of operators.
"""

from typing import Any, List, Sequence

import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width; nothing is copied."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    width = _BITS[tensor.element_size()]
    return tensor if tensor.dtype is width else tensor.view(width)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type, strides and bits."""
    if one.shape != other.shape or one.dtype is not other.dtype or one.layout is not other.layout:
        return False
    if one.layout is not torch.strided:
        return all(same_bits(*pair) for pair in zip(_parts(one), _parts(other)))
    if one.stride() != other.stride() or one.device != other.device:
        return False
    if one.is_conj() != other.is_conj() or one.is_neg() != other.is_neg():
        return False
    if one.is_conj() or one.is_neg():
        one, other = one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg()
    return torch.equal(bits_of(one), bits_of(other))


def same_results(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists of results are the same, tensors in every bit."""
    return len(some) == len(others) and all(_same(*pair) for pair in zip(some, others))


def flat_results(value: Any) -> List[Any]:
    """Everything in a result, out of lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat_results(part)]
    return [value]


def bytes_in(value: Any) -> int:
    """Of the tensors in a result."""
    tensors = [item for item in flat_results(value) if isinstance(item, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same_bits(one.detach(), other.detach())
    return repr(one) == repr(other)


def _parts(tensor: torch.Tensor) -> List[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]

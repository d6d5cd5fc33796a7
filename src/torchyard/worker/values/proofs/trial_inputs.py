"""Inputs of trials: copies of arguments, other values, poisons; and bitwise comparison of results.

Memory that a replay may write is copied with its sharing. Other values have no NaN and infinity, which would hide
differences; indices stay within their range. Several poison values replace just filled memory, because a NaN
disappears in a comparison, and a huge number in an infinite sum. NaN equals itself, -0.0 does not equal 0.0.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.observation import storage_key, untyped_storage
from torchyard.worker.values.operators import Operator, operator_of, written_tensors

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the memory as integers of the same width."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    width = _BITS[tensor.element_size()]
    return tensor if tensor.dtype is width else tensor.view(width)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype, strides and bits."""
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
    """Return whether two lists of results are identical, tensors bit for bit."""
    return len(some) == len(others) and all(_same(*pair) for pair in zip(some, others))


def flat_results(value: Any) -> List[Any]:
    """Flatten the lists and tuples of a result."""
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat_results(part)]
    return [value]


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


def drawn(flat: torch.Tensor, source: torch.Generator, low: int, high: int) -> torch.Tensor:
    """Draw random integers from low (inclusive) to high (exclusive)."""
    return torch.randint(low, high, flat.shape, generator=source, device=flat.device)


def normal(flat: torch.Tensor, source: torch.Generator) -> None:
    """Fill with standard normal numbers."""
    flat.normal_(generator=source)


def extreme(flat: torch.Tensor, source: torch.Generator) -> None:
    """Fill with a fifth each of 0, -0, small, negative and large numbers in random order."""
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


NOT_POISONED = "integer memory is not poisoned: it may hold indices"
_POISON_SEED = 1337

Poison = Callable[[torch.Tensor], None]


def poisons_for(dtype: torch.dtype) -> Dict[str, Poison]:
    """Return the poisons for a dtype by name; empty if it must not be poisoned."""
    if dtype.is_floating_point or dtype.is_complex:
        return {"NaN": _not_a_number, "a huge number": _huge, "random bits": _random_bits}
    if dtype is torch.bool:
        return {"the opposite": _opposite, "true and false in turn": _in_turn}
    if dtype is torch.uint8:
        return {"0 for 1 and 1 for 0": _opposite, "0 and 1 in turn": _in_turn}
    return {}


def put(poison: Poison, tensors: List[torch.Tensor]) -> bool:
    """Poison tensors; return whether any bit changed."""
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
    source.manual_seed(_POISON_SEED)
    limits = torch.iinfo(bits.dtype)
    drawn = torch.randint(
        limits.min, limits.max, bits.shape, generator=source, dtype=bits.dtype, device=bits.device
    )
    bits.copy_(drawn)


def _opposite(tensor: torch.Tensor) -> None:
    tensor.copy_(tensor == 0)


def _in_turn(tensor: torch.Tensor) -> None:
    first = bool(tensor[(0,) * tensor.dim()] != 0)
    parity = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2
    tensor.copy_(parity == int(first))


OWN = "the program's own"
RANDOM = "random numbers"
EXTREME = "zeros, negative and large numbers"
OTHERS = (RANDOM, EXTREME)
_SEED = 20_201_205
_ALIGN = 16
_KEPT_NAMES = frozenset({"random_samples"})
"""Floating-point arguments that kernels convert to indices."""
_FREE_INTEGERS = frozenset(
    {"aten::copy_", "aten::fill_", "aten::masked_fill_", "aten::masked_fill", "aten::where"}
)
"""Operators without the pointwise tag whose integers are not indices."""


class CannotCopy(Exception):
    """Arguments that cannot be copied."""


class Call(NamedTuple):
    """An operator with arguments that may be written."""

    func: Any
    args: Any
    kwargs: Any
    written: List[torch.Tensor]
    varied: bool = False
    """Whether any value differs from those of the program."""
    integers_kept: bool = False
    """Whether some integers were not varied."""


class _Memory:
    """Arguments in one storage, and the part of it that they use."""

    def __init__(self) -> None:
        self.tensors: List[torch.Tensor] = []
        self.low, self.high = -1, 0
        self.copy: torch.Tensor

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor of this storage."""
        width = tensor.element_size()
        begin = tensor.storage_offset() * width
        spans = (step * (size - 1) for size, step in zip(tensor.shape, tensor.stride()))
        end = begin + (sum(spans) + 1) * width if tensor.numel() else begin
        begin -= begin % _ALIGN
        self.low = begin if self.low < 0 else min(self.low, begin)
        self.high = max(self.high, end)
        self.tensors.append(tensor)

    @property
    def size_bytes(self) -> int:
        """Size of the part in use."""
        return self.high - self.low

    def take_copy(self) -> None:
        """Copy the part in use."""
        first = self.tensors[0]
        whole = torch.empty(0, dtype=torch.uint8, device=first.device)
        whole.set_(untyped_storage(first), self.low, (self.size_bytes,), (1,))
        self.copy = whole.clone()

    def in_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in the copy that corresponds to one in the original."""
        width = tensor.element_size()
        offset = (tensor.storage_offset() * width - self.low) // width
        copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return copied.set_(untyped_storage(self.copy), offset, tensor.shape, tensor.stride())

    def elements(self) -> Optional[torch.Tensor]:
        """Return the copy as a flat tensor; None if its tensors have several dtypes."""
        kinds = {tensor.dtype for tensor in self.tensors}
        if len(kinds) > 1:
            return None
        (kind,) = kinds
        width = self.tensors[0].element_size()
        return self.copy[: self.size_bytes // width * width].view(kind)


def size_to_copy(func: Any, args: Any, kwargs: Any, everything: bool) -> int:
    """Return the bytes needed by a copy of the arguments."""
    memories = _memories(func, args, kwargs, everything)
    return sum(memory.size_bytes for memory in memories.values())


def own_call(func: Any, args: Any, kwargs: Any) -> Call:
    """Return the program's arguments; memory that the operator writes is copied."""
    memories = _memories(func, args, kwargs, everything=False)
    for memory in memories.values():
        memory.take_copy()
    return _remade(func, args, kwargs, memories)


def other_call(func: Any, args: Any, kwargs: Any, kind: str) -> Call:
    """Return arguments with other values of one of the kinds in OTHERS."""
    operator = operator_of(func)
    kept_ids = _kept(func, args, kwargs)
    memories = _memories(func, args, kwargs, everything=True)
    varied, integers_kept = False, False
    for number, memory in enumerate(memories.values()):
        memory.take_copy()
        flat = memory.elements()
        if flat is None or any(id(tensor) in kept_ids for tensor in memory.tensors):
            integers_kept = integers_kept or flat is None
            continue
        source = torch.Generator(device=flat.device)
        source.manual_seed(_SEED + number)
        if flat.dtype.is_floating_point or flat.dtype.is_complex:
            (normal if kind == RANDOM else extreme)(flat, source)
        elif flat.dtype is torch.bool:
            flat.copy_(drawn(flat, source, 0, 2))
        elif free_integers(func, operator):
            low, high = int(flat.min()), int(flat.max())
            flat.copy_(drawn(flat, source, low, high + 2))
        elif kind == EXTREME:
            # One index for all: every kernel accepts equal indices, and a scatter that happened to
            # reach every element no longer does.
            flat.fill_(min(int(tensor.min()) for tensor in memory.tensors if tensor.numel()))
        else:
            integers_kept = True
            continue
        varied = True
    return _remade(func, args, kwargs, memories, varied=varied, integers_kept=integers_kept)


def free_integers(func: Any, operator: Operator) -> bool:
    """Return whether integers of this operator are never indices."""
    pointwise = getattr(torch.Tag, "pointwise", None)
    return operator.name in _FREE_INTEGERS or pointwise in getattr(func, "tags", ())


def integers_in(args: Any, kwargs: Any) -> bool:
    """Return whether there are integer tensors among the arguments."""
    kinds = [tensor.dtype for tensor in _tensors(args, kwargs)]
    return any(
        not (kind.is_floating_point or kind.is_complex or kind is torch.bool) for kind in kinds
    )


def _tensors(args: Any, kwargs: Any) -> List[torch.Tensor]:
    values = flat_results(list(args)) + flat_results(list(kwargs.values()))
    return [value for value in values if isinstance(value, torch.Tensor)]


def _memories(func: Any, args: Any, kwargs: Any, everything: bool) -> Dict[int, _Memory]:
    """Return the memory of the arguments by storage: all, or only what the operator writes."""
    memories: Dict[int, _Memory] = {}
    written = {
        storage_key(tensor)
        for tensor in written_tensors(operator_of(func), args, kwargs)
        if _plain(tensor)
    }
    for tensor in _tensors(args, kwargs):
        if not _plain(tensor):
            continue
        key = storage_key(tensor)
        if (everything or key in written) and tensor.numel():
            memories.setdefault(key, _Memory()).add(tensor)
    return memories


def _plain(tensor: torch.Tensor) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotCopy("an argument is a %s" % type(tensor).__name__)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise CannotCopy("an argument has no strided memory")
    if tensor.is_conj() or tensor.is_neg():
        raise CannotCopy("an argument is lazily conjugated or negated")
    return True


def _kept(func: Any, args: Any, kwargs: Any) -> Dict[int, torch.Tensor]:
    """Return the arguments whose values must not change, by identity."""
    names = [argument.name for argument in func._schema.arguments]
    named = list(zip(names, args)) + list(kwargs.items())
    return {
        id(value): value
        for name, value in named
        if name in _KEPT_NAMES and isinstance(value, torch.Tensor)
    }


def _remade(
    func: Any,
    args: Any,
    kwargs: Any,
    memories: Dict[int, _Memory],
    varied: bool = False,
    integers_kept: bool = False,
) -> Call:
    def remake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            memory = memories.get(storage_key(value))
            if memory is None or not value.numel():
                return value.detach()
            return memory.in_copy(value)
        return value

    arguments = tuple(_map(value, remake) for value in args)
    named = {name: _map(value, remake) for name, value in kwargs.items()}
    written = written_tensors(operator_of(func), arguments, named)
    return Call(func, arguments, named, written, varied, integers_kept)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, change) for item in value)
    return change(value)

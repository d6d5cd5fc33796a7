"""Arguments of an operator for another run of it: the same ones, or others of the same form.

Whatever a replay may write is a copy; tensors that share memory share it in the copy, too. Other
arguments keep shapes, strides, types and plain numbers, and get other values. Positions in memory
(indices) stay inside the range that they had, or a kernel would read where nothing is.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch

from torchyard.worker.values.bits import flat_results
from torchyard.worker.values.operators import Operator, operator_of, written_tensors
from torchyard.worker.values.other_values import drawn, extreme, normal
from torchyard.worker.values.storages import storage_key, untyped_storage

OWN = "the program's own"
RANDOM = "random numbers"
EXTREME = "zeros, negative and large numbers"
OTHERS = (RANDOM, EXTREME)
_SEED = 20_201_205
_ALIGN = 16
_KEPT_NAMES = frozenset({"random_samples"})
"""Floats that kernels turn into positions."""
_FREE_INTEGERS = frozenset(
    {"aten::copy_", "aten::fill_", "aten::masked_fill_", "aten::masked_fill", "aten::where"}
)
"""Not tagged as pointwise, and their integers are no positions either."""


class CannotCopy(Exception):
    """Why arguments cannot be made again."""


class Call(NamedTuple):
    """An operator with arguments that it may write."""

    func: Any
    args: Any
    kwargs: Any
    written: List[torch.Tensor]
    varied: bool = False
    """Whether any value differs from the program's own."""
    integers_kept: bool = False
    """Whether it has integers that are as the program had them, so that they test nothing."""


class _Memory:
    """Arguments that lie in one storage, and the part of it that they use."""

    def __init__(self) -> None:
        self.tensors: List[torch.Tensor] = []
        self.low, self.high = -1, 0
        self.copy: torch.Tensor

    def add(self, tensor: torch.Tensor) -> None:
        """One more tensor in this storage."""
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
        """Of the part in use."""
        return self.high - self.low

    def take_copy(self) -> None:
        """Copy the part in use."""
        first = self.tensors[0]
        whole = torch.empty(0, dtype=torch.uint8, device=first.device)
        whole.set_(untyped_storage(first), self.low, (self.size_bytes,), (1,))
        self.copy = whole.clone()

    def in_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that lies in the copy where this one lies in the original."""
        width = tensor.element_size()
        offset = (tensor.storage_offset() * width - self.low) // width
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(untyped_storage(self.copy), offset, tensor.shape, tensor.stride())

    def elements(self) -> Optional[torch.Tensor]:
        """The copy as a flat tensor of its one type; None when tensors see it as several types."""
        kinds = {tensor.dtype for tensor in self.tensors}
        if len(kinds) > 1:
            return None
        (kind,) = kinds
        width = self.tensors[0].element_size()
        return self.copy[: self.size_bytes // width * width].view(kind)


def size_to_copy(func: Any, args: Any, kwargs: Any, everything: bool) -> int:
    """How many bytes a copy of the arguments takes."""
    memories = _memories(func, args, kwargs, everything)
    return sum(memory.size_bytes for memory in memories.values())


def own_call(func: Any, args: Any, kwargs: Any) -> Call:
    """The same arguments; what the operator writes, and what shares memory with it, is copied."""
    memories = _memories(func, args, kwargs, everything=False)
    for memory in memories.values():
        memory.take_copy()
    return _remade(func, args, kwargs, memories)


def other_call(func: Any, args: Any, kwargs: Any, kind: str) -> Call:
    """Arguments with other values of one of the kinds in OTHERS."""
    operator = operator_of(func)
    kept = _kept(func, args, kwargs)
    memories = _memories(func, args, kwargs, everything=True)
    varied, integers_kept = False, False
    for number, memory in enumerate(memories.values()):
        memory.take_copy()
        flat = memory.elements()
        if flat is None or any(id(tensor) in kept for tensor in memory.tensors):
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
            # One position for all: every kernel that takes many takes equal ones, and a scatter
            # that happened to reach every place does so no more.
            flat.fill_(min(int(tensor.min()) for tensor in memory.tensors if tensor.numel()))
        else:
            integers_kept = True
            continue
        varied = True
    return _remade(func, args, kwargs, memories, varied=varied, integers_kept=integers_kept)


def free_integers(func: Any, operator: Operator) -> bool:
    """Whether integers of this operator are plain numbers, never positions."""
    pointwise = getattr(torch.Tag, "pointwise", None)
    return operator.name in _FREE_INTEGERS or pointwise in getattr(func, "tags", ())


def integers_in(args: Any, kwargs: Any) -> bool:
    """Whether there are integer tensors among the arguments."""
    kinds = [tensor.dtype for tensor in _tensors(args, kwargs)]
    return any(
        not (kind.is_floating_point or kind.is_complex or kind is torch.bool) for kind in kinds
    )


def _tensors(args: Any, kwargs: Any) -> List[torch.Tensor]:
    values = flat_results(list(args)) + flat_results(list(kwargs.values()))
    return [value for value in values if isinstance(value, torch.Tensor)]


def _memories(func: Any, args: Any, kwargs: Any, everything: bool) -> Dict[int, _Memory]:
    """Memory of the arguments by storage: all of it, or what the operator writes."""
    found: Dict[int, _Memory] = {}
    wanted = {
        storage_key(tensor)
        for tensor in written_tensors(operator_of(func), args, kwargs)
        if _plain(tensor)
    }
    for tensor in _tensors(args, kwargs):
        if not _plain(tensor):
            continue
        key = storage_key(tensor)
        if (everything or key in wanted) and tensor.numel():
            found.setdefault(key, _Memory()).add(tensor)
    return found


def _plain(tensor: torch.Tensor) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotCopy("an argument is a %s" % type(tensor).__name__)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise CannotCopy("an argument has no plain memory")
    if tensor.is_conj() or tensor.is_neg():
        raise CannotCopy("an argument is conjugated or negated lazily")
    return True


def _kept(func: Any, args: Any, kwargs: Any) -> Dict[int, torch.Tensor]:
    """Arguments whose values must stay, by identity."""
    names = [argument.name for argument in func._schema.arguments]
    given = list(zip(names, args)) + list(kwargs.items())
    return {
        id(value): value
        for name, value in given
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

    made = tuple(_map(value, remake) for value in args)
    named = {name: _map(value, remake) for name, value in kwargs.items()}
    written = written_tensors(operator_of(func), made, named)
    return Call(func, made, named, written, varied, integers_kept)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, change) for item in value)
    return change(value)

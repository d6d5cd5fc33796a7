"""A built workload: a model with its inputs, its loss and its optimizer."""

from collections import deque
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple


class CannotBuild(Exception):
    """The workload cannot be built here: unknown name, missing package, unsupported mode."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def first_line(error: BaseException) -> str:
    """Return the beginning of the message of an exception."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""


class Traffic(NamedTuple):
    """Minimum memory traffic of one iteration: every input read and every output written once.

    `elements` counts floating-point numbers of the workload's data type, whose bytes depend on the
    precision; `fixed_bytes` are indices, masks and counters, whose size is fixed.
    """

    elements: float
    fixed_bytes: float = 0.0

    def bytes_at(self, element_bytes: int) -> float:
        """Return the bytes for floating-point numbers of that size."""
        return self.elements * element_bytes + self.fixed_bytes


@dataclass(eq=False)
class BuiltWorkload:
    """A workload ready to run.

    module      an ``nn.Module``; its ``forward(*args, **kwargs)`` is one inference iteration
    args        positional inputs, any nesting of tuples, lists and dicts of tensors
    kwargs      keyword inputs
    loss        function from the module's output to a scalar; None: training is not supported
    loss_name   name of the loss: "sum", "mean", "cross-entropy", "the model's own"
    optimizer   function from a list of parameters to an optimizer, for training with the step
    flops       floating-point operations of one inference iteration, where known exactly
    mutates     the iteration changes the module's own parameters (an optimizer step as a workload)
    traffic     minimum memory traffic of one iteration in the requested mode, if known
    batch_size  the batch size; None: there is no batch, or only the suite defines it
    stream      function from the module, or its compiled form, to the tokens and logits of a generated text
    others      inputs and losses of the other ranks; their modules are not used
    """

    module: Any
    args: Tuple[Any, ...] = ()
    kwargs: Dict[str, Any] = field(default_factory=dict)
    loss: Optional[Callable[[Any], Any]] = None
    loss_name: str = ""
    optimizer: Optional[Callable[[Sequence[Any]], Any]] = None
    flops: Optional[float] = None
    mutates: bool = False
    traffic: Optional[Traffic] = None
    batch_size: Optional[int] = None
    stream: Optional[Callable[[Callable[..., Any]], List[Tuple[Any, Any]]]] = None
    others: Tuple["BuiltWorkload", ...] = ()


SEQUENCES = (list, tuple, deque)
"""Containers whose elements are results or inputs, in their order."""


def flatten(value: Any, by_key: bool = False) -> List[Any]:
    """Return the tensors in any nesting of outputs or inputs, in a stable order.

    With `by_key`, those of a dict are in the order of its keys: equal dicts may differ in their own order.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        keys = sorted_keys(value) if by_key else list(value)
        return [tensor for key in keys for tensor in flatten(value[key], by_key)]
    if isinstance(value, SEQUENCES):
        return [tensor for item in value for tensor in flatten(item, by_key)]
    if hasattr(value, "to_tuple"):
        return flatten(value.to_tuple(), by_key)
    if not is_opaque(value):
        return flatten(members_of(value), by_key)
    return []


def sorted_keys(mapping: Dict[Any, Any]) -> List[Any]:
    """Return the keys of a dict, of any types, in an order that does not depend on insertion."""
    return sorted(mapping, key=lambda key: (str(key), type(key).__name__))


def is_opaque(value: Any) -> bool:
    """Whether an object has no attributes that could hold tensors."""
    has_attributes = hasattr(value, "__dict__") or (
        is_dataclass(value) or _holds_tensors_in_slots(value)
    )
    return not has_attributes or callable(value)


def members_of(value: Any) -> Dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    return {**_in_slots(value), **getattr(value, "__dict__", {})}


def _in_slots(value: Any) -> Dict[str, Any]:
    names: List[str] = []
    for kind in reversed(type(value).__mro__):
        own = vars(kind).get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return {
        name: getattr(value, name)
        for name in names
        if not name.startswith("__") and hasattr(value, name)
    }


def _holds_tensors_in_slots(value: Any) -> bool:
    import torch

    return any(isinstance(item, torch.Tensor) for item in _in_slots(value).values())


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same nesting with `change` applied to every tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(item, change)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def as_arguments(
    inputs: Any, change: Callable[[Any], Any]
) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
    """Return a tensor, sequence or mapping as changed arguments and keywords; None for other types."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return (change(inputs),), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(tuple(inputs), change)), {}
    if hasattr(inputs, "keys") and all(isinstance(key, str) for key in inputs.keys()):  # noqa: SIM118
        return (), {key: map_tensors(inputs[key], change) for key in inputs.keys()}  # noqa: SIM118
    return None

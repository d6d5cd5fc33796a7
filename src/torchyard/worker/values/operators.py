"""Effects of operators on memory, by their schema, and properties that hold for all argument values.

The lists of semantics are allowlists, and proofs rely on nothing else: an operator is listed if its documentation or
kernel states the property for all values, shapes and devices, not if a trial failed to refute it.
"""

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

import torch


def words(text: str) -> FrozenSet[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def aten(names: str) -> FrozenSet[str]:
    """Return a set of operators of the namespace aten."""
    return frozenset("aten::" + name for name in words(names))


UNDEFINED = aten(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ "
    "resize_as_ resize set_"
)
"""Operators that return uninitialized memory."""

FILLS = aten(
    "zero_ _foreach_zero_ fill_ zeros zeros_like new_zeros ones ones_like new_ones full "
    "full_like new_full"
)
"""Operators that write one value to all elements and read nothing."""

COPIES = aten("clone copy_ _foreach_copy_ _to_copy contiguous lift_fresh_copy _copy_from")
"""Operators that copy."""

WRITE_ONLY = aten(
    "copy_ _foreach_copy_ zero_ _foreach_zero_ fill_ normal_ uniform_ random_ bernoulli_ "
    "exponential_ geometric_ cauchy_ log_normal_"
)
"""Operators that overwrite their argument without reading it, as do all with an `out` argument."""


UNANNOTATED_WRITERS = aten(
    "_batch_norm_impl_index _cudnn_rnn _cudnn_rnn_flatten_weight batch_norm "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats "
    "cudnn_batch_norm instance_norm miopen_batch_norm miopen_rnn native_batch_norm "
    "rrelu_with_noise"
)
"""Operators of torch that write arguments without declaring it in their schema."""

OF_TORCH = ("aten::", "prims::", "prim::", "profiler::")
"""Namespaces whose operators access only their arguments; others may access anything."""

COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Namespaces of operators that exchange memory with other processes."""

ESCAPES = aten("set_ from_file record_stream")
"""Operators after which memory is shared with an untracked storage, file or stream."""


VIEWS_WITH_WRITING_BACKWARD = aten(
    "as_strided diagonal expand select slice split split_with_sizes unbind unfold"
)
"""Views whose gradient is new memory, so that their source line is needed in the backward pass."""


class Operator:
    """One overload of an operator."""

    is_kernel = False
    """Whether it stands for a buffer of a generated kernel (`compiled`)."""
    folded = False
    """Whether the compiler replaced a computation by a constant."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name
        self.writes: Tuple[Tuple[int, str], ...] = tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        """(position, name) of the written arguments."""
        self.fresh = any(
            value.alias_info is None and "Tensor" in str(value.type) for value in schema.returns
        )
        """Whether it returns new memory (`reshape` and similar may still return a view)."""
        self.accepts_tensor = tuple("Tensor" in str(one.type) for one in schema.arguments)
        """Whether each argument is a tensor, or a list of tensors."""
        results = [str(value.type) for value in schema.returns]
        self.many_results = results != ["Tensor"]
        self.returns_written = len(self.writes) == 1 and not self.fresh and not self.many_results
        """Whether its result is the only written tensor, as for `add_` and `out=`."""
        resizes = self.name in ("aten::resize_as_", "aten::resize_")
        metadata = torch.Tag.inplace_view in getattr(func, "tags", ()) and not resizes
        self.inert = (not self.writes or metadata) and not self.fresh
        """Whether it neither writes nor allocates memory: views, sizes, detach."""
        self.undefined = self.name in UNDEFINED
        self.fills = self.name in FILLS
        self.copies = self.name in COPIES
        out = any(name == "out" or name.startswith("out") for _, name in self.writes)
        self.overwrites = self.name in WRITE_ONLY or out
        self.many = self.name.startswith(("aten::_foreach_", "aten::_fused_"))
        """Whether it processes a list of tensors, as optimizers do."""
        self.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.view_with_writing_backward = self.name in VIEWS_WITH_WRITING_BACKWARD
        outside = not self.name.startswith(OF_TORCH)
        self.escapes = outside or self.name in ESCAPES
        """Whether its arguments may be accessed without being observed afterwards."""
        self.communicates = self.name.startswith(COLLECTIVES)
        self.hidden_effects = self.name in UNANNOTATED_WRITERS
        """Whether it may write arguments that its schema does not declare as written."""
        self.inert = self.inert and not (self.hidden_effects or self.escapes)
        self.returns_numbers = self.inert and bool(results) and "Tensor" not in "".join(results)
        """Whether it reads values, as `item` and `equal` do, or sizes, and returns no tensor."""


# By identity, because hashing an overload calls Python. The overload is stored beside the entry, so
# that its identity is not reused.
_operators: Dict[int, Tuple[Operator, Any]] = {}


def operator_of(func: Any) -> Operator:
    """Return the properties of an overload."""
    entry = _operators.get(id(func))
    if entry is None:
        entry = _operators[id(func)] = (Operator(func), func)
    return entry[0]


def written_tensors(operator: Operator, args: Any, kwargs: Any) -> List[torch.Tensor]:
    """Return the tensors that an operator writes, including those in lists."""
    return tensors_in(
        [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in operator.writes
        ]
    )


PLAIN = frozenset({bool, int, float, type(None), str, torch.dtype, torch.device, torch.layout})
"""Types that are not tensors; `isinstance` of tensors is slow."""


def tensors_in(values: Any) -> List[torch.Tensor]:
    """Return the tensors among values and in lists of values."""
    tensors: List[torch.Tensor] = []
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is torch.Tensor or isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(item for item in value if isinstance(item, torch.Tensor))
    return tensors


FULL_OVERWRITES = aten(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_"
)
"""In-place operators that write every element of their first argument without reading it."""

_FULL_OUT = aten(
    "mm bmm mv dot matmul addmm baddbmm addmv sum mean amax amin prod cumsum cumprod cat "
    "stack softmax _softmax log_softmax _log_softmax index_select gather linspace arange"
)
"""Operators that write all of `out`, besides those tagged as pointwise."""

_ELEMENTWISE_GRADIENTS = "its kernel is elementwise and writes every element of the gradient"
WRITES_WHOLE_RESULT: Dict[str, str] = {
    "aten::mse_loss_backward": _ELEMENTWISE_GRADIENTS,
    "aten::smooth_l1_loss_backward": _ELEMENTWISE_GRADIENTS,
    "aten::huber_loss_backward": _ELEMENTWISE_GRADIENTS,
}
"""Operators that create their result with zeros and then overwrite every element."""

FILLS_TWICE: Dict[str, str] = {
    "aten::nll_loss2d_backward": "it creates its result with zeros and calls zero_ on it",
    "aten::multilabel_margin_loss_backward": "it creates its result with zeros and calls zero_ on it",
}
"""Operators that fill new memory with zeros twice, for all arguments."""


def overwrites_all(func: Any, operator: Operator) -> bool:
    """Return whether an operator writes every element of its output and reads none."""
    if operator.name in FULL_OVERWRITES:
        return True
    if len(operator.writes) != 1 or operator.writes[0][1] != "out":
        return False
    pointwise = getattr(torch.Tag, "pointwise", None)
    return operator.name in _FULL_OUT or pointwise in getattr(func, "tags", ())


def proven_inside(
    path: Tuple[str, ...], shape: Tuple[int, ...], result: Any, *, refilled: bool
) -> Optional[str]:
    """Return why a fill (or second equal fill) inside an operator is always wasted; None if unknown."""
    outermost = path[0]
    if refilled:
        return FILLS_TWICE.get(outermost)
    whole = isinstance(result, torch.Tensor) and tuple(result.shape) == shape
    return WRITES_WHOLE_RESULT.get(outermost) if whole else None

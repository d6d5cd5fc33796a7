"""What an operator does to memory, by its schema, and what holds for all values of its arguments.

Schemas say which arguments are written and what is returned; computed once per operator. The lists
of semantics are allowlists, and a proof may rest on nothing else: an operator is listed when its
documentation or its kernel states the property for all values, shapes and devices, not when a
trial failed to refute it. What is missing proves nothing.
"""

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

import torch

UNDEFINED = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
        "aten::resize_as_",
        "aten::resize",
        "aten::set_",
    }
)
"""Operators that give memory without writing it: what is in there is not a value."""

FILLS = frozenset(
    {
        "aten::zero_",
        "aten::_foreach_zero_",
        "aten::fill_",
        "aten::zeros",
        "aten::zeros_like",
        "aten::new_zeros",
        "aten::ones",
        "aten::ones_like",
        "aten::new_ones",
        "aten::full",
        "aten::full_like",
        "aten::new_full",
    }
)
"""Operators that write one value everywhere and read nothing."""

COPIES = frozenset(
    {
        "aten::clone",
        "aten::copy_",
        "aten::_foreach_copy_",
        "aten::_to_copy",
        "aten::contiguous",
        "aten::lift_fresh_copy",
        "aten::_copy_from",
    }
)
"""Operators whose purpose is the same bits at another place."""

WRITE_ONLY = frozenset(
    {
        "aten::copy_",
        "aten::_foreach_copy_",
        "aten::zero_",
        "aten::_foreach_zero_",
        "aten::fill_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::cauchy_",
        "aten::log_normal_",
    }
)
"""Operators that overwrite their argument without reading it, as do all with an `out` argument."""


UNANNOTATED_WRITERS = frozenset(
    {
        "aten::_batch_norm_impl_index",
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_flatten_weight",
        "aten::batch_norm",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
        "aten::batch_norm_update_stats",
        "aten::cudnn_batch_norm",
        "aten::instance_norm",
        "aten::miopen_batch_norm",
        "aten::miopen_rnn",
        "aten::native_batch_norm",
        "aten::rrelu_with_noise",
    }
)
"""Operators of torch that write arguments which their schema does not mark as written."""

OF_TORCH = ("aten::", "prims::", "prim::", "profiler::")
"""Namespaces whose operators touch no more than their arguments. What others do is not known."""

ESCAPES = frozenset({"aten::set_", "aten::from_file", "aten::record_stream"})
"""Operators after which memory is shared with a storage, a file or a stream that is not followed."""


VIEWS_WITH_WRITING_BACKWARD = frozenset(
    {
        "aten::as_strided",
        "aten::diagonal",
        "aten::expand",
        "aten::select",
        "aten::slice",
        "aten::split",
        "aten::split_with_sizes",
        "aten::unbind",
        "aten::unfold",
    }
)
"""Views whose gradient is new memory: their place is needed when that is written."""


class Operator:
    """One overload of an operator."""

    __slots__ = (
        "copies",
        "escapes",
        "fills",
        "fresh",
        "hidden_effects",
        "inert",
        "many",
        "many_results",
        "name",
        "overwrites",
        "random",
        "returns_written",
        "undefined",
        "view_with_writing_backward",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name
        self.writes: Tuple[Tuple[int, str], ...] = tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        """(position, name) of the arguments that it writes."""
        self.fresh = any(
            value.alias_info is None and "Tensor" in str(value.type) for value in schema.returns
        )
        """Whether it returns memory of its own. (`reshape`-like ones may return a view anyway.)"""
        results = [str(value.type) for value in schema.returns]
        self.many_results = results != ["Tensor"]
        self.returns_written = len(self.writes) == 1 and not self.fresh and not self.many_results
        """Whether its result is the one tensor that it writes, as of `add_` and of `out=`."""
        resizes = self.name in ("aten::resize_as_", "aten::resize_")
        metadata = torch.Tag.inplace_view in getattr(func, "tags", ()) and not resizes
        self.inert = (not self.writes or metadata) and not self.fresh
        """Whether it neither writes nor makes memory: views, sizes, detach."""
        self.undefined = self.name in UNDEFINED
        self.fills = self.name in FILLS
        self.copies = self.name in COPIES
        out = any(name == "out" or name.startswith("out") for _, name in self.writes)
        self.overwrites = self.name in WRITE_ONLY or out
        self.many = self.name.startswith(("aten::_foreach_", "aten::_fused_"))
        """Whether it does the same to each tensor of a list, as optimisers do."""
        self.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.view_with_writing_backward = self.name in VIEWS_WITH_WRITING_BACKWARD
        outside = not self.name.startswith(OF_TORCH)
        self.escapes = outside or self.name in ESCAPES
        """Whether its arguments may be read and written unseen from now on."""
        self.hidden_effects = self.name in UNANNOTATED_WRITERS
        """Whether it may write more of its arguments than its schema says."""
        self.inert = self.inert and not (self.hidden_effects or self.escapes)


# By identity: to hash an overload takes a call of Python. It is kept beside the answer, so that its
# identity is not used again.
_known: Dict[int, Tuple[Operator, Any]] = {}


def operator_of(func: Any) -> Operator:
    """What is known of an overload."""
    entry = _known.get(id(func))
    if entry is None:
        entry = _known[id(func)] = (Operator(func), func)
    return entry[0]


def written_tensors(operator: Operator, args: Any, kwargs: Any) -> List[torch.Tensor]:
    """The tensors that the operator is about to write, out of lists, too."""
    tensors: List[torch.Tensor] = []
    for position, name in operator.writes:
        value = args[position] if position < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(item for item in value if isinstance(item, torch.Tensor))
    return tensors


def tensors_in(values: Any) -> List[torch.Tensor]:
    """Tensors among values, one level of lists deep, as schemas have them."""
    tensors: List[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(item for item in value if isinstance(item, torch.Tensor))
    return tensors


FULL_OVERWRITES: FrozenSet[str] = frozenset(
    {
        "aten::copy_",
        "aten::fill_",
        "aten::zero_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::cauchy_",
        "aten::log_normal_",
    }
)
"""In-place operators that write every element of their first argument without reading it."""

_FULL_OUT: FrozenSet[str] = frozenset(
    {
        "aten::mm",
        "aten::bmm",
        "aten::mv",
        "aten::dot",
        "aten::matmul",
        "aten::addmm",
        "aten::baddbmm",
        "aten::addmv",
        "aten::sum",
        "aten::mean",
        "aten::amax",
        "aten::amin",
        "aten::prod",
        "aten::cumsum",
        "aten::cumprod",
        "aten::cat",
        "aten::stack",
        "aten::softmax",
        "aten::_softmax",
        "aten::log_softmax",
        "aten::_log_softmax",
        "aten::index_select",
        "aten::gather",
        "aten::linspace",
        "aten::arange",
    }
)
"""Operators whose `out` tensor is written in full; those tagged as pointwise are as well."""

_FILL_VALUES: Dict[str, float] = {
    "aten::zero_": 0,
    "aten::zeros": 0,
    "aten::zeros_like": 0,
    "aten::new_zeros": 0,
    "aten::ones": 1,
    "aten::ones_like": 1,
    "aten::new_ones": 1,
}

_ELEMENTWISE_GRADIENTS = "its kernel is elementwise and writes every element of the gradient"
WRITES_WHOLE_RESULT: Dict[str, str] = {
    "aten::mse_loss_backward": _ELEMENTWISE_GRADIENTS,
    "aten::smooth_l1_loss_backward": _ELEMENTWISE_GRADIENTS,
    "aten::huber_loss_backward": _ELEMENTWISE_GRADIENTS,
}
"""Operators that create their result with zeros and then write every element of it."""

FILLS_TWICE: Dict[str, str] = {
    "aten::nll_loss2d_backward": "it creates its result with zeros and calls zero_ on it",
    "aten::multilabel_margin_loss_backward": "it creates its result with zeros and calls zero_ on it",
}
"""Operators that fill new memory with zeros twice, whatever they are given."""


def overwrites_all(func: Any, operator: Operator) -> bool:
    """Whether an operator writes every element of what it writes, and reads none of it."""
    if operator.name in FULL_OVERWRITES:
        return True
    if len(operator.writes) != 1 or operator.writes[0][1] != "out":
        return False
    pointwise = getattr(torch.Tag, "pointwise", None)
    return operator.name in _FULL_OUT or pointwise in getattr(func, "tags", ())


def proven_inside(
    path: Tuple[str, ...], shape: Tuple[int, ...], result: Any, *, refilled: bool
) -> Optional[str]:
    """Why a fill inside an operator is wasted for every input; None when that is not known.

    `refilled` for a fill of new memory that had been filled with the same constant inside the same
    call, else the fill itself is in question.
    """
    outermost = path[0]
    if refilled:
        return FILLS_TWICE.get(outermost)
    whole = isinstance(result, torch.Tensor) and tuple(result.shape) == shape
    return WRITES_WHOLE_RESULT.get(outermost) if whole else None


def fill_value(name: str) -> Optional[float]:
    """The value that a fill writes whatever its arguments are; None when it is an argument."""
    return _FILL_VALUES.get(name)

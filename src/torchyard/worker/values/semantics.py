"""What operators are known to do for every value of their arguments. Allowlists: what is missing proves nothing.

A proof may only rest on what is listed here. An operator belongs to a list when its documentation or
its kernel states the property for all values, shapes and devices, not when a trial did not refute it.
"""

from typing import Any, Dict, FrozenSet, Optional, Tuple

import torch

from torchyard.worker.values.operators import Operator

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

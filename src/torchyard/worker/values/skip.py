"""Leaving an operator out: what it would have returned when all it does is write an argument.

Knows schemas only. An operator that makes memory of its own, or writes several tensors, cannot be
left out: something would be missing.
"""

from typing import Any, Optional

from torchyard.worker.values.operators import operator_of, written_tensors

NOT_SKIPPED = "an operator that makes memory or writes several tensors cannot be left out"


def can_skip(func: Any) -> bool:
    """Whether all that the operator returns is the one argument that it writes."""
    operator = operator_of(func)
    if len(operator.writes) != 1 or operator.fresh or operator.undefined:
        return False
    returns = func._schema.returns
    aliased = all(value.alias_info is not None and value.alias_info.is_write for value in returns)
    return len(returns) <= 1 and aliased and _written_type(func) == "Tensor"


def left_out(func: Any, args: Any, kwargs: Any) -> Optional[Any]:
    """What the caller gets when the operator does not run."""
    if not func._schema.returns:
        return None
    return written_tensors(operator_of(func), args, kwargs)[0]


def _written_type(func: Any) -> str:
    position = operator_of(func).writes[0][0]
    return str(func._schema.arguments[position].type)

"""Which patterns examine the buffers of generated kernels, and under which conditions.

A pattern that needs to know the operator (guards, masks, activations) cannot judge a fused kernel, and is left out. In a
backward graph, equal gradients and constant gradients follow from the forward operators, as in eager code.
"""

from typing import Any, Callable, Dict, Type

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import Pattern
from torchyard.worker.values.patterns.duplicates import Duplicate, NeedlessCopy, Unchanged
from torchyard.worker.values.patterns.filled_operands import FilledOperand
from torchyard.worker.values.patterns.heavy_type import HeavyType
from torchyard.worker.values.patterns.uniform_values import SingleValue, only_zeros
from torchyard.worker.values.patterns.wasted_writes import DeadInitialisation, RedundantWrite

NOT_TESTED = "observed in every call of a generated kernel, which is not replayed with other values"
NOT_TIMED = "generated kernels are not timed"


def _always(_observation: Observation) -> bool:
    return True


def _no_guard(observation: Observation) -> bool:
    return not observation.in_backward and not getattr(observation.operator, "guards", False)


def _no_conversion(observation: Observation) -> bool:
    return not getattr(observation.operator, "converts", False)


def _constant(observation: Observation) -> bool:
    return not observation.in_backward or only_zeros(observation)


_EXAMINED: Dict[Type[Pattern], Callable[[Observation], bool]] = {
    RedundantWrite: _no_guard,
    DeadInitialisation: _always,
    Duplicate: _no_guard,
    NeedlessCopy: _always,
    FilledOperand: _always,
    SingleValue: _constant,
    HeavyType: _no_conversion,
    Unchanged: _always,
}


def examines(pattern: Any, observation: Observation) -> bool:
    """Return whether a pattern examines what a generated kernel wrote."""
    condition = _EXAMINED.get(type(pattern))
    return condition is not None and condition(observation)

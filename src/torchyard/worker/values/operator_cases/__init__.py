"""Operators to be swept: what to call and what with. Adding one: a line in the module of its family.

A case names what it calls, so that a torch that does not have it can still read the list. Inputs are
small and quick, and large enough (64 KiB and more) that what an operator does inside of itself is
looked at. Knows nothing of watching, proofs or results.
"""

import importlib
import importlib.util
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import torch

from torchyard.worker.values.operator_cases.inputs import Draw

FAMILIES: Tuple[str, ...] = (
    "attention",
    "conv",
    "embedding",
    "index",
    "linalg",
    "loss",
    "move",
    "norm",
    "optimiser",
    "pad",
    "pointwise",
    "pool",
    "reduce",
    "rnn",
    "signal",
)
"""Modules of this package; each has a list CASES."""

Make = Callable[[Draw], Sequence[Any]]


class Missing(Exception):
    """Why this torch cannot run a case."""


class Case(NamedTuple):
    """One call of an operator, with its backward where an input needs a gradient."""

    name: str
    call: Union[str, Callable[..., Any]]
    """A path below `torch`, or a function."""
    make: Make
    """Makes the arguments from a source of values."""
    options: Dict[str, Any]
    """Keywords of the call."""
    family: str = ""

    def function(self) -> Callable[..., Any]:
        """What to call; raises Missing when this torch does not have it."""
        if not isinstance(self.call, str):
            return self.call
        found: Any = torch
        for part in self.call.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise Missing("this torch has no torch.%s" % self.call)
        function: Callable[..., Any] = found
        return function


def case(name: str, call: Union[str, Callable[..., Any]], make: Make, **options: Any) -> Case:
    """A case; keywords are those of the call."""
    return Case(name, call, make, options)


def all_cases() -> List[Case]:
    """Those of every family, in order."""
    found: List[Case] = []
    for family in FAMILIES:
        module = importlib.import_module("%s.%s" % (__name__, family))
        found += [item._replace(family=family) for item in module.CASES]
    return found


def cases_of_file(path: str) -> List[Case]:
    """Cases from somebody's own Python file, which has a list CASES as the families here have."""
    spec = importlib.util.spec_from_file_location("cases_of_file", path)
    if spec is None or spec.loader is None:
        raise ImportError("%s is no Python file" % path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [item._replace(family=item.family or "own") for item in module.CASES]

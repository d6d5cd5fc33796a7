"""Operators of the sweep: calls and their inputs. To add one: a line in the list of its family.

A case refers to its operator by name, so that older versions of torch can load the list. Inputs are
seeded, equal on every device, small, and large enough (64 KiB and more) that the work inside an
operator is examined. Independent of profiling, proofs and results.
"""

import importlib
import importlib.util
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import torch


class Draw:
    """Random tensors; values are generated on the CPU, so that they are equal on every device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = torch.device(device)
        self._source = torch.Generator()
        self._source.manual_seed(seed)
        torch.manual_seed(seed)  # for the weights of modules

    def floats(self, *shape: int, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        """Return normally distributed numbers."""
        return self._given(torch.randn(shape, generator=self._source), dtype)

    def learned(self, *shape: int, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        """Return normally distributed numbers that require a gradient."""
        return self.floats(*shape, dtype=dtype).requires_grad_()

    def between(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Return uniformly distributed numbers."""
        return self._given(torch.rand(shape, generator=self._source) * (high - low) + low)

    def learned_between(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Return uniformly distributed numbers that require a gradient."""
        return self.between(low, high, *shape).requires_grad_()

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """Return integers from 0 to `below` - 1."""
        return self._given(torch.randint(0, below, shape, generator=self._source))

    def integers_from(self, low: int, below: int, *shape: int) -> torch.Tensor:
        """Return integers from `low` to `below` - 1."""
        return self._given(torch.randint(low, below, shape, generator=self._source))

    def bools(self, *shape: int) -> torch.Tensor:
        """Return random booleans."""
        return self._given(torch.randint(0, 2, shape, generator=self._source).bool())

    def signs(self, *shape: int) -> torch.Tensor:
        """Return random signs (-1.0 and 1.0)."""
        return self._given(torch.randint(0, 2, shape, generator=self._source) * 2.0 - 1.0)

    def order(self, count: int) -> torch.Tensor:
        """Return a random permutation of 0 to `count` - 1."""
        return self._given(torch.randperm(count, generator=self._source))

    def complexes(self, *shape: int) -> torch.Tensor:
        """Return complex normal numbers that require a gradient."""
        parts = torch.randn((*shape, 2), generator=self._source)
        return self._given(torch.view_as_complex(parts)).requires_grad_()

    def spread(self, size: int) -> torch.Tensor:
        """Return a well-conditioned positive definite matrix that requires a gradient."""
        some = torch.randn((size, size), generator=self._source)
        return self._given(some @ some.t() / size + torch.eye(size)).requires_grad_()

    def on_device(self, module: Any) -> Any:
        """Return a module of torch."""
        return module.to(self.device)

    def _given(self, tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        return tensor.to(device=self.device, dtype=dtype or tensor.dtype)


FAMILIES: Dict[str, str] = {
    "attention": "layers",
    "conv": "spatial",
    "embedding": "layers",
    "index": "arithmetic",
    "linalg": "arithmetic",
    "loss": "layers",
    "move": "arithmetic",
    "norm": "layers",
    "optimiser": "layers",
    "pad": "spatial",
    "pointwise": "arithmetic",
    "pool": "spatial",
    "random": "arithmetic",
    "reduce": "arithmetic",
    "rnn": "layers",
    "signal": "arithmetic",
}
"""Module of each family; its list is named after the family, such as ATTENTION_CASES."""

Make = Callable[[Draw], List[Any]]


class Missing(Exception):
    """This torch does not have the operator of a case."""


class Case(NamedTuple):
    """One call of an operator, with its backward pass if an input requires a gradient."""

    name: str
    call: Union[str, Callable[..., Any]]
    """A dotted name below `torch`, or a function."""
    make: Make
    """Creates the arguments."""
    options: Dict[str, Any]
    """Keywords of the call."""
    family: str = ""

    def function(self) -> Callable[..., Any]:
        """Return the function to call; raise Missing if this torch does not have it."""
        if not isinstance(self.call, str):
            return self.call
        value: Any = torch
        for part in self.call.split("."):
            value = getattr(value, part, None)
            if value is None:
                raise Missing("this torch has no torch.%s" % self.call)
        function: Callable[..., Any] = value
        return function


def case(name: str, call: Union[str, Callable[..., Any]], make: Make, **options: Any) -> Case:
    """Return a case; keywords are passed to the call."""
    return Case(name, call, make, options)


def function_case(name: str, make: Make, **options: Any) -> Case:
    """Return a case of the function in `torch.nn.functional` that the name starts with."""
    return case(name, "nn.functional." + name.partition(".")[0], make, **options)


def learned(*shapes: Sequence[int]) -> Make:
    """Return a function that creates tensors of these shapes that require a gradient."""
    return lambda draw: [draw.learned(*shape) for shape in shapes]


TABLE = learned((256, 256))
TWO_TABLES = learned((256, 256), (256, 256))


def all_cases() -> List[Case]:
    """Return the cases of all families, in order."""
    cases: List[Case] = []
    for family, module_name in FAMILIES.items():
        module = importlib.import_module("%s.%s" % (__name__, module_name))
        listed = getattr(module, "%s_CASES" % family.upper())
        cases += [item._replace(family=family) for item in listed]
    return cases


def cases_of_file(path: str) -> List[Case]:
    """Return the cases of a Python file with a list CASES."""
    spec = importlib.util.spec_from_file_location("cases_of_file", path)
    if spec is None or spec.loader is None:
        raise ImportError("%s is no Python file" % path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [item._replace(family=item.family or "own") for item in module.CASES]

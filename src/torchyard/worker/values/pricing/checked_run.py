"""Run a program on chosen random numbers, with uninitialized memory full of known garbage, and note more results.

Seeds that the program sets are shifted, so that it gets other numbers in each check and the same in both variants.
New memory of `torch.empty` and its relatives is filled, so that reading it before writing shows in the results.
"""

import hashlib
import os
import random
import sys
from typing import Any, Callable, Dict, List, Optional

import torch

from torchyard.worker.values.pricing.applied_fix import digest_of
from torchyard.worker.values.program import Replacement

_FIRST_SEED = 20_231
_MOST_DEPTH = 4
_MOST_OBJECTS = 20_000
POISONS: Dict[str, Dict[str, Any]] = {
    "nan": {"float": float("nan"), "int": 113, "bool": True},
    "large": {"float": 6.0e4, "int": 1, "bool": False},
    "negative": {"float": -3.0, "int": 77, "bool": True},
}
"""Garbage by kind of number; small integers, because large ones may be used as sizes."""
FINAL = "tensors of the main module"
SAVED = "saved tensors"


class CheckedRun:
    """Applies the settings of a check while the program runs, and collects tensors that it leaves."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self._shift = int(plan.get("seed", 0))
        self._poison: Optional[Dict[str, Any]] = POISONS.get(plan.get("poison", ""))
        self._replaced: List[Replacement] = []
        self._saved: List[Dict[str, Any]] = []
        self._final: List[torch.Tensor] = []
        self._main = ""

    def start(self) -> None:
        """Seed all generators, and replace functions of torch."""
        sys.dont_write_bytecode = (
            True  # the file may change within the resolution of its time stamp
        )
        self._shift_seeds()
        if self._poison is not None:
            for name in ("empty", "empty_like", "empty_strided", "empty_permuted"):
                if hasattr(torch, name):
                    self._replace(torch, name, self._poisoned(getattr(torch, name)))
            for name in ("new_empty", "new_empty_strided"):
                self._replace(torch.Tensor, name, self._poisoned(getattr(torch.Tensor, name)))
        save = torch.save

        def noted(value: Any, *args: Any, **keywords: Any) -> Any:
            self._saved.append(digest_of(tensors_within(value)))
            return save(value, *args, **keywords)

        self._replace(torch, "save", noted)

    def finish(self, names: Dict[str, Any]) -> None:
        """Take the variables of the main module."""
        self._main = str(names.get("__file__") or "")
        chosen = {name: names[name] for name in sorted(names) if not name.startswith("__")}
        self._final = tensors_within(chosen)

    def stop(self) -> None:
        """Restore the functions of torch."""
        for replaced in reversed(self._replaced):
            replaced.remove()
        self._replaced = []

    def results(self) -> Dict[str, Any]:
        """For JSON: a digest of each kind of result."""
        results: Dict[str, Any] = {}
        if self._final:
            results[FINAL] = digest_of(self._final)
        if self._saved:
            together = "".join(one["digest"] for one in self._saved)
            results[SAVED] = {"digest": hashlib.sha256(together.encode()).hexdigest()}
        return results

    def loaded_files(self) -> List[str]:
        """Return the source files that the program has loaded, except those beside torch."""
        packages = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep
        files = {self._main, sys.argv[0] if sys.argv else ""}
        files.update(
            getattr(module, "__file__", None) or "" for module in list(sys.modules.values())
        )
        return sorted(
            os.path.realpath(file)
            for file in files
            if file.endswith(".py") and not file.startswith(packages)
        )

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append(Replacement(owner, name, value))

    def _shift_seeds(self) -> None:
        first = _FIRST_SEED + self._shift
        random.seed(first)
        torch.manual_seed(first)
        self._shifted(random, "seed")
        self._shifted(torch, "manual_seed")
        self._shifted(torch.random, "manual_seed")
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(first)
            self._shifted(numpy.random, "seed")
        shift = self._shift

        try:

            class Generator(torch.Generator):
                """A generator whose seed is shifted."""

                def manual_seed(self, seed: int) -> Any:
                    return super().manual_seed(seed + shift)

        except TypeError:  # cannot be a base class
            return
        self._replace(torch, "Generator", Generator)

    def _shifted(self, owner: Any, name: str) -> None:
        own: Callable[..., Any] = getattr(owner, name)
        shift = self._shift

        def seeded(seed: Any = None, *args: Any, **keywords: Any) -> Any:
            if isinstance(seed, int):
                seed += shift
            return own(seed, *args, **keywords)

        self._replace(owner, name, seeded)

    def _poisoned(self, create: Callable[..., Any]) -> Callable[..., Any]:
        poison = self._poison or {}

        def created(*args: Any, **keywords: Any) -> Any:
            result = create(*args, **keywords)
            if isinstance(result, torch.Tensor) and keywords.get("out") is None:
                _fill(result, poison)
            return result

        return created


def _fill(tensor: torch.Tensor, poison: Dict[str, Any]) -> None:
    if tensor.device.type == "meta" or tensor.layout is not torch.strided:
        return
    if tensor.dtype is torch.bool:
        value = poison["bool"]
    elif tensor.is_floating_point() or tensor.is_complex():
        value = poison["float"]
    else:
        value = poison["int"]
    try:
        with torch.no_grad():
            tensor.detach().fill_(value)
    except (RuntimeError, NotImplementedError):
        return  # a dtype without a fill, such as a packed one


def tensors_within(value: Any) -> List[torch.Tensor]:
    """Return the tensors in containers, modules and objects, in a fixed order; each object once."""
    tensors: List[torch.Tensor] = []
    _collect(value, tensors, set(), 0)
    return tensors


def _collect(value: Any, into: List[torch.Tensor], seen: Any, depth: int) -> None:
    if isinstance(value, (str, bytes, int, float, bool, type(None), type)) or callable_only(value):
        return
    if id(value) in seen or len(seen) > _MOST_OBJECTS or depth > _MOST_DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            into.append(value)
        elif value.layout is torch.sparse_coo:
            _collect(value.detach().coalesce().values(), into, seen, depth + 1)
        return
    if isinstance(value, torch.nn.Module):
        for tensor in value.state_dict().values():
            _collect(tensor, into, seen, depth + 1)
        return
    if isinstance(value, torch.optim.Optimizer):
        _collect(value.state_dict(), into, seen, depth + 1)
        return
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
        data = bytearray(value.tobytes())
        if data:
            into.append(torch.frombuffer(data, dtype=torch.uint8))
        return
    items: Any = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    elif not kind.__module__.startswith(("torch", "builtins")):
        items = getattr(value, "__dict__", {}).values()
    for item in list(items):
        _collect(item, into, seen, depth + 1)


def callable_only(value: Any) -> bool:
    """Return whether a value is a function or a Python module."""
    return type(value).__name__ in ("function", "module", "builtin_function_or_method", "method")

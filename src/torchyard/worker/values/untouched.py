"""What a replay must leave as it found it: random numbers, gradients, the user's profiler.

A program must compute the same bits whether its operators are tried again beside it or not.
"""

import random
import warnings
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.values.bits import flat_results


class Untouched:
    """Keeps the state of random numbers; `rewind` gives each replay the same ones."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        given = flat_results(list(args)) + flat_results(list(kwargs.values()))
        self._generators = [value for value in given if isinstance(value, torch.Generator)]
        self._cuda = torch.cuda.is_initialized() and any(
            isinstance(value, torch.Tensor) and value.is_cuda for value in given
        )
        self._states: List[Any] = []
        self._cuda_states: List[Any] = []
        self._python: Any = None
        self._no_grad = torch.no_grad()
        self._show: Any = None

    def __enter__(self) -> "Untouched":
        self._no_grad.__enter__()
        # Silence without touching the filters: that would make the program repeat its warnings.
        self._show, warnings.showwarning = warnings.showwarning, _say_nothing
        self._python = random.getstate()
        self._states = [torch.get_rng_state()]
        self._states += [generator.get_state() for generator in self._generators]
        if self._cuda:
            self._cuda_states = torch.cuda.get_rng_state_all()
        return self

    def rewind(self) -> None:
        """Random numbers as they were."""
        random.setstate(self._python)
        torch.set_rng_state(self._states[0])
        for generator, state in zip(self._generators, self._states[1:]):
            generator.set_state(state)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda_states)

    def __exit__(self, *_: Any) -> None:
        self.rewind()
        warnings.showwarning = self._show
        self._no_grad.__exit__(None, None, None)


def _say_nothing(*_: Any, **__: Any) -> None:
    pass


def why_not_now() -> Optional[str]:
    """What forbids a replay at this moment; None when nothing does. The watch must be off."""
    if torch._C._len_torch_dispatch_stack() or any(_infrastructure_modes()):
        return "another dispatch mode of the program would see it"
    if torch.autograd._profiler_enabled():
        return "the program's own profiler would see it"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    if peek is not None and peek() is not None:
        return "a function transform is under way"
    return None


def _infrastructure_modes() -> List[bool]:
    """Fake, functional and tracing modes, which are kept apart from the others."""
    kinds: Dict[str, Any] = getattr(torch._C._TorchDispatchModeKey, "__members__", {})
    get = getattr(torch._C, "_get_dispatch_mode", None)
    return [] if get is None else [get(kind) is not None for kind in kinds.values()]

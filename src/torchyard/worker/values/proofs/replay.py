"""Run an operator again with one inner operator modified: its output poisoned, or the call omitted.

Inner operators are numbered in start order, without views; a replay that does not reach the same operator at that
number fails. Random number generators, gradients and the user's profiler are preserved.
"""

import random
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.devices import Device, random_states
from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.proofs.trial_inputs import Call, Poison, flat_results, put
from torchyard.worker.values.redispatch import Chains, TransparentMode, call_inside


class StateGuard:
    """Saves and restores random number state; `rewind` gives each replay the same numbers."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        arguments = flat_results(list(args)) + flat_results(list(kwargs.values()))
        self._generators = [value for value in arguments if isinstance(value, torch.Generator)]
        self._accelerated = any(
            isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in arguments
        )
        self._states: List[Any] = []
        self._device_states: List[Tuple[Device, Any]] = []
        self._python: Any = None
        self._no_grad = torch.no_grad()
        self._show: Any = None

    def __enter__(self) -> "StateGuard":
        self._no_grad.__enter__()
        # Replaces showwarning, because changed filters would make the program repeat its warnings.
        self._show, warnings.showwarning = warnings.showwarning, _ignore_warning
        self._python = random.getstate()
        self._states = [torch.get_rng_state()]
        self._states += [generator.get_state() for generator in self._generators]
        if self._accelerated:
            self._device_states = random_states()
        return self

    def rewind(self) -> None:
        """Restore the random number state."""
        random.setstate(self._python)
        torch.set_rng_state(self._states[0])
        for generator, state in zip(self._generators, self._states[1:]):
            generator.set_state(state)
        for device, device_state in self._device_states:
            device.set_random_state(device_state)

    def __exit__(self, *_: Any) -> None:
        self.rewind()
        warnings.showwarning = self._show
        self._no_grad.__exit__(None, None, None)


def _ignore_warning(*_: Any, **__: Any) -> None:
    pass


def replay_blocker() -> Optional[str]:
    """Return why a replay is not possible now, or None. The mode must be inactive."""
    if torch._C._len_torch_dispatch_stack() or any(_infrastructure_modes()):
        return "another dispatch mode of the program would observe it"
    if torch.autograd._profiler_enabled():
        return "the program's own profiler would record it"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    if peek is not None and peek() is not None:
        return "a function transform is active"
    return None


def _infrastructure_modes() -> List[bool]:
    """Return whether fake, functional and tracing modes, which have a separate stack, are active."""
    kinds: Dict[str, Any] = getattr(torch._C._TorchDispatchModeKey, "__members__", {})
    get = getattr(torch._C, "_get_dispatch_mode", None)
    return [] if get is None else [get(kind) is not None for kind in kinds.values()]


NOT_SKIPPED = "an operator that allocates memory or writes several tensors cannot be omitted"


def can_skip(func: Any) -> bool:
    """Return whether the operator only writes and returns one argument."""
    operator = operator_of(func)
    if len(operator.writes) != 1 or operator.fresh or operator.undefined:
        return False
    returns = func._schema.returns
    aliased = all(value.alias_info is not None and value.alias_info.is_write for value in returns)
    return len(returns) <= 1 and aliased and _written_type(func) == "Tensor"


def left_out(func: Any, args: Any, kwargs: Any) -> Optional[Any]:
    """Return the result for the caller if the operator is omitted."""
    if not func._schema.returns:
        return None
    return written_tensors(operator_of(func), args, kwargs)[0]


def _written_type(func: Any) -> str:
    position = operator_of(func).writes[0][0]
    return str(func._schema.arguments[position].type)


class ReplayFailed(Exception):
    """A replay that is not comparable."""


class InnerOperator(NamedTuple):
    """An inner operator."""

    number: int
    name: str
    path: Tuple[str, ...]
    shape: Tuple[int, ...]
    position: int = 0
    """Index among its written tensors."""


Outcome = List[Any]
"""Results of a replay, followed by the tensors that it wrote."""


def run_clean(call: Call, keep: StateGuard, chains: Optional[Chains] = None) -> Outcome:
    """Run the unmodified operator with redispatch; `chains` counts the inner operators."""
    return _run(call, keep, _Replay(None, None, chains))


def run_poisoned(call: Call, keep: StateGuard, inside: InnerOperator, poison: Poison) -> Outcome:
    """Run the operator with the output of one inner operator poisoned."""

    def change(tensors: List[torch.Tensor]) -> None:
        if inside.position >= len(tensors) or tuple(tensors[inside.position].shape) != inside.shape:
            raise ReplayFailed("the replay produced a different tensor")
        if not put(poison, [tensors[inside.position]]):
            raise ReplayFailed("the memory already held the poison value")

    return _run(call, keep, _Replay(inside, change))


def run_skipped(call: Call, keep: StateGuard, inside: InnerOperator) -> Outcome:
    """Run the operator with one inner operator omitted."""
    return _run(call, keep, _Replay(inside, None))


def run_native(call: Call, keep: StateGuard) -> Outcome:
    """Run the operator natively, without redispatch."""
    keep.rewind()
    return _outcome(call, call.func(*call.args, **call.kwargs))


def _run(call: Call, keep: StateGuard, replay: "_Replay") -> Outcome:
    keep.rewind()
    with replay:
        result = call.func(*call.args, **call.kwargs)
    if replay.target is not None and not replay.reached:
        raise ReplayFailed("the replay did not reach the inner operator")
    return _outcome(call, result)


def _outcome(call: Call, result: Any) -> Outcome:
    return flat_results(result) + list(call.written)


class _Replay(TransparentMode):
    """Dispatch mode that modifies one inner operator."""

    def __init__(
        self,
        target: Optional[InnerOperator],
        change: Optional[Callable[[List[torch.Tensor]], None]],
        chains: Optional[Chains] = None,
    ) -> None:
        super().__init__()
        self.target = target
        self.reached = False
        self._change = change
        self._chains = chains
        self._begun = -1
        self._path: List[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """Run one operator."""
        keywords = kwargs or {}
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        self._begun += 1
        if self._chains is not None:
            chain = tuple(self._path) + (operator.name,)
            self._chains[chain] = self._chains.get(chain, 0) + 1
        if self.target is None or self._begun != self.target.number:
            return self._call(func, args, keywords)
        if (operator.name, tuple(self._path)) != (self.target.name, self.target.path):
            raise ReplayFailed("the replay ran different inner operators")
        self.reached = True
        if self._change is None:
            if not can_skip(func):
                raise ReplayFailed(NOT_SKIPPED)
            return left_out(func, args, keywords)
        result = self._call(func, args, keywords)
        self._change(_touched(operator, args, keywords, result))
        return result

    def _call(self, func: Any, args: Any, keywords: Any) -> Any:
        return call_inside(self, self._path, func, args, keywords)[0]


def _touched(operator: Operator, args: Any, kwargs: Any, result: Any) -> List[torch.Tensor]:
    """Return the tensors that an operator wrote or created, as observations number them."""
    if operator.writes:
        return written_tensors(operator, args, kwargs)
    return tensors_in((result,))

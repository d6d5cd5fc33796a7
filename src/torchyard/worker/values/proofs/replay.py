"""Run an operator again, with one of the operators inside it changed: poisoned or left out.

Operators inside are numbered as the dispatch mode numbers them: in the order they begin, views not
counted, the operator itself being 0. A replay that does not meet the same operator at that number
is void. An operator can be left out only if all it does is write one argument. A replay leaves
random number generators, gradients and the user's profiler as they were: a program must compute
the same bits with and without it.
"""

import random
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.proofs.trial_inputs import Call, Poison, flat_results, put
from torchyard.worker.values.redispatch import Chains, call_plainly, key_for


class StateGuard:
    """Keeps the state of random numbers; `rewind` gives each replay the same ones."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        arguments = flat_results(list(args)) + flat_results(list(kwargs.values()))
        self._generators = [value for value in arguments if isinstance(value, torch.Generator)]
        self._cuda = torch.cuda.is_initialized() and any(
            isinstance(value, torch.Tensor) and value.is_cuda for value in arguments
        )
        self._states: List[Any] = []
        self._cuda_states: List[Any] = []
        self._python: Any = None
        self._no_grad = torch.no_grad()
        self._show: Any = None

    def __enter__(self) -> "StateGuard":
        self._no_grad.__enter__()
        # Silence without touching the filters: that would make the program repeat its warnings.
        self._show, warnings.showwarning = warnings.showwarning, _ignore_warning
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


def _ignore_warning(*_: Any, **__: Any) -> None:
    pass


def replay_blocker() -> Optional[str]:
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


class ReplayFailed(Exception):
    """Why a replay says nothing."""


class InnerOperator(NamedTuple):
    """One of the operators inside an operator."""

    number: int
    name: str
    path: Tuple[str, ...]
    shape: Tuple[int, ...]
    position: int = 0
    """Which of its tensors."""


Outcome = List[Any]
"""Everything that a replay returned, and then everything that it wrote."""


def run_clean(call: Call, keep: StateGuard, chains: Optional[Chains] = None) -> Outcome:
    """The operator as it is, with the watch's way of looking inside; `chains` counts what is there."""
    return _run(call, keep, _Replay(None, None, chains))


def run_poisoned(call: Call, keep: StateGuard, inside: InnerOperator, poison: Poison) -> Outcome:
    """The operator with the result of one operator inside it poisoned."""

    def change(tensors: List[torch.Tensor]) -> None:
        if inside.position >= len(tensors) or tuple(tensors[inside.position].shape) != inside.shape:
            raise ReplayFailed("another tensor was there in the replay")
        if not put(poison, [tensors[inside.position]]):
            raise ReplayFailed("the poison is what was there anyway")

    return _run(call, keep, _Replay(inside, change))


def run_skipped(call: Call, keep: StateGuard, inside: InnerOperator) -> Outcome:
    """The operator with one operator inside it left out."""
    return _run(call, keep, _Replay(inside, None))


def run_native(call: Call, keep: StateGuard) -> Outcome:
    """The operator as the program runs it: nothing looks inside."""
    keep.rewind()
    return _outcome(call, call.func(*call.args, **call.kwargs))


def _run(call: Call, keep: StateGuard, replay: "_Replay") -> Outcome:
    keep.rewind()
    with replay:
        result = call.func(*call.args, **call.kwargs)
    if replay.target is not None and not replay.reached:
        raise ReplayFailed("the operator did not do the same again")
    return _outcome(call, result)


def _outcome(call: Call, result: Any) -> Outcome:
    return flat_results(result) + list(call.written)


class _Replay(TorchDispatchMode):
    """Follows one operator inside, and changes what one operator there does."""

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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """One operator."""
        keywords = kwargs or {}
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        self._begun += 1
        if self._chains is not None:
            chain = tuple(self._path) + (operator.name,)
            self._chains[chain] = self._chains.get(chain, 0) + 1
        if self.target is None or self._begun != self.target.number:
            return self._call(func, args, keywords, operator)
        if (operator.name, tuple(self._path)) != (self.target.name, self.target.path):
            raise ReplayFailed("the operator did other things in the replay")
        self.reached = True
        if self._change is None:
            if not can_skip(func):
                raise ReplayFailed("it cannot be left out")
            return left_out(func, args, keywords)
        result = self._call(func, args, keywords, operator)
        self._change(_touched(operator, args, keywords, result))
        return result

    def _call(self, func: Any, args: Any, keywords: Any, operator: Operator) -> Any:
        key = None if operator.name in self._path else key_for(func, args, keywords)
        if key is None:
            return call_plainly(func, args, keywords)
        self._path.append(operator.name)
        try:
            with self:
                return func.redispatch(key, *args, **keywords)
        except NotImplementedError:
            return call_plainly(func, args, keywords)
        finally:
            self._path.pop()


def _touched(operator: Operator, args: Any, kwargs: Any, result: Any) -> List[torch.Tensor]:
    """What an operator wrote, else what it made: as positions of observations count them."""
    if operator.writes:
        return written_tensors(operator, args, kwargs)
    return tensors_in((result,))

"""Run an operator again, with one of the operators inside it changed: poisoned or left out.

Operators inside are numbered as the watch numbers them: in the order they begin, views not counted,
the operator itself being 0. A replay that does not meet what the watch met at that number is void.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.values.arguments import Call
from torchyard.worker.values.bits import flat_results
from torchyard.worker.values.deep import call_plainly, key_for
from torchyard.worker.values.native_events import Chains
from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.poison import Poison, put
from torchyard.worker.values.skip import can_skip, left_out
from torchyard.worker.values.untouched import Untouched


class Void(Exception):
    """Why a replay says nothing."""


class Inside(NamedTuple):
    """One of the operators inside an operator."""

    number: int
    name: str
    path: Tuple[str, ...]
    shape: Tuple[int, ...]
    position: int = 0
    """Which of its tensors."""


Outcome = List[Any]
"""Everything that a replay returned, and then everything that it wrote."""


def run_clean(call: Call, keep: Untouched, chains: Optional[Chains] = None) -> Outcome:
    """The operator as it is, with the watch's way of looking inside; `chains` counts what is there."""
    return _run(call, keep, _Replay(None, None, chains))


def run_poisoned(call: Call, keep: Untouched, inside: Inside, poison: Poison) -> Outcome:
    """The operator with the result of one operator inside it poisoned."""

    def change(tensors: List[torch.Tensor]) -> None:
        if inside.position >= len(tensors) or tuple(tensors[inside.position].shape) != inside.shape:
            raise Void("another tensor was there in the replay")
        if not put(poison, [tensors[inside.position]]):
            raise Void("the poison is what was there anyway")

    return _run(call, keep, _Replay(inside, change))


def run_skipped(call: Call, keep: Untouched, inside: Inside) -> Outcome:
    """The operator with one operator inside it left out."""
    return _run(call, keep, _Replay(inside, None))


def run_native(call: Call, keep: Untouched) -> Outcome:
    """The operator as the program runs it: nothing looks inside."""
    keep.rewind()
    return _outcome(call, call.func(*call.args, **call.kwargs))


def _run(call: Call, keep: Untouched, replay: "_Replay") -> Outcome:
    keep.rewind()
    with replay:
        result = call.func(*call.args, **call.kwargs)
    if replay.wanted is not None and not replay.met:
        raise Void("the operator did not do the same again")
    return _outcome(call, result)


def _outcome(call: Call, result: Any) -> Outcome:
    return flat_results(result) + list(call.written)


class _Replay(TorchDispatchMode):
    """Follows one operator inside, and changes what one operator there does."""

    def __init__(
        self,
        wanted: Optional[Inside],
        change: Optional[Callable[[List[torch.Tensor]], None]],
        chains: Optional[Chains] = None,
    ) -> None:
        super().__init__()
        self.wanted = wanted
        self.met = False
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
        if self.wanted is None or self._begun != self.wanted.number:
            return self._call(func, args, keywords, operator)
        if (operator.name, tuple(self._path)) != (self.wanted.name, self.wanted.path):
            raise Void("the operator did other things in the replay")
        self.met = True
        if self._change is None:
            if not can_skip(func):
                raise Void("it cannot be left out")
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

"""A fix, simulated: one workload with two ways to run it, as it is and mended, for `measure`.

`make` and `mended` are what a workload file and a backend file offer; the yard puts both names into
a file of its own beside the recipe. Both ways are modules of the same form, so that what is around
the operator costs the same.
"""

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.built import CannotBuild
from torchyard.worker.values.bits import flat_results, same_bits
from torchyard.worker.values.native_events import NativeEvents
from torchyard.worker.values.operators import FILLS, operator_of, written_tensors
from torchyard.worker.values.poison import poisons_for, put
from torchyard.worker.values.recipes import Made, make_again
from torchyard.worker.values.worth_notes import FILL_FIRST, INSIDE

INTO_OWN_MEMORY = "the operator's own overload, into memory that nobody filled"
WITHOUT_FILL = "the operator that overwrites it, without the fill before it"
ONCE_MORE = "the operator with that work done once more, against the operator: at least this much"


class Way(nn.Module):
    """One way to run an operator; its tensors are the inputs, in order."""

    def __init__(self, body: Callable[[List[Any]], Any]) -> None:
        super().__init__()
        self._body = body
        self.mended: Optional["Way"] = None
        self.method = ""

    def forward(self, *tensors: Any) -> Any:
        """Run it."""
        return self._body(list(tensors))


def make(recipe: str) -> Tuple[Way, Tuple[Any, ...]]:
    """The workload of a recipe file: the operator as it is, and its inputs."""
    with open(recipe, encoding="utf-8") as file:
        data = json.load(file)
    way, tensors = open_pair(data)
    return way, tuple(tensors)


def mended(module: Any) -> Any:
    """The backend: the same workload, mended."""
    return module.mended


def method_of(data: Dict[str, Any]) -> str:
    """How the fix of a finding's recipe is simulated; empty when it cannot be."""
    try:
        return open_pair(data)[0].method
    except Exception:
        return ""


def open_pair(data: Dict[str, Any]) -> Tuple[Way, List[Any]]:
    """As it is (with `.mended`) and the tensors that both take."""
    if not data.get("operator") or data.get("mending") not in (FILL_FIRST, INSIDE):
        raise CannotBuild("this finding has no fix that can be simulated")
    made = make_again(data["operator"])
    tensors, call = _as_inputs(made)
    if data["mending"] == FILL_FIRST:
        return _pair(_filled_first(made, call), call, WITHOUT_FILL), tensors
    into = _into_own_memory(made)
    if into is not None:
        return _pair(call, into, INTO_OWN_MEMORY), tensors
    extra = [make_again(part) for part in data["wasted"]]

    def once_more(given: List[Any]) -> Any:
        for part in extra:
            part.func(*part.args, **part.kwargs)
        return call(given)

    return _pair(once_more, call, ONCE_MORE), tensors


def _pair(
    as_it_is: Callable[[List[Any]], Any], better: Callable[[List[Any]], Any], how: str
) -> Way:
    way = Way(as_it_is)
    way.mended = Way(better)
    way.method = how
    return way


def _as_inputs(made: Made) -> Tuple[List[Any], Callable[[List[Any]], Any]]:
    """The tensors among the arguments, and the operator as a function of them."""
    values = flat_results([made.args, list(made.kwargs.values())])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    func, args, kwargs = made.func, made.args, made.kwargs

    def call(given: List[Any]) -> Any:
        left = iter(given)
        return func(
            *[_put_in(value, left) for value in args],
            **{name: _put_in(value, left) for name, value in kwargs.items()},
        )

    return tensors, call


def _put_in(value: Any, left: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(left)
    if isinstance(value, list):
        return [_put_in(item, left) for item in value]
    return value


def _filled_first(made: Made, call: Callable[[List[Any]], Any]) -> Callable[[List[Any]], Any]:
    written = written_tensors(operator_of(made.func), made.args, made.kwargs)[0]
    tensors, _ = _as_inputs(made)
    position = next(index for index, tensor in enumerate(tensors) if tensor is written)

    def filled_first(given: List[Any]) -> Any:
        given[position].zero_()
        return call(given)

    return filled_first


def _into_own_memory(made: Made) -> Optional[Callable[[List[Any]], Any]]:
    """The overload that writes into given memory, if it does the same with fewer fills."""
    found = _overload_with_out(made.func)
    if found is None:
        return None
    overload, name = found
    with torch.no_grad():
        with NativeEvents() as events:
            result = made()
        if not isinstance(result, torch.Tensor):
            return None
        for poison in poisons_for(result.dtype).values():
            out = torch.empty_like(result)
            put(poison, [out])
            with NativeEvents() as fewer:
                overload(*made.args, **dict(made.kwargs, **{name: out}))
            if not same_bits(out, result) or _fills(fewer) >= _fills(events):
                return None
    shape, stride = tuple(result.shape), result.stride()
    dtype, device = result.dtype, result.device
    args, kwargs = made.args, made.kwargs

    def into(given: List[Any]) -> Any:
        left = iter(given)
        out = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return overload(
            *[_put_in(value, left) for value in args],
            **{key: _put_in(value, left) for key, value in kwargs.items()},
            **{name: out},
        )

    return into


def _overload_with_out(func: Any) -> Optional[Tuple[Any, str]]:
    """An overload with the same arguments and one more that it writes."""
    wanted = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        if [(item.name, str(item.type)) for item in arguments[:-1]] != wanted:
            continue
        last = arguments[-1]
        if last.alias_info is not None and last.alias_info.is_write:
            return overload, last.name
    return None


def _fills(events: NativeEvents) -> int:
    """Fills that are not inside of another fill."""
    return sum(
        count
        for chain, count in events.chains.items()
        if chain[-1] in FILLS and not any(name in FILLS for name in chain[:-1])
    )

"""Time wasted work and its simulated fix alone: operators created from recipes, in a separate process.

Samples are taken in random order, every second one with cold caches. `make` and `fixed` are what a workload file and
a backend file offer, so that `bench` compares both ways, which are modules of the same form. `gain_of` is the quick
estimate for sweeps of hundreds of operators.
"""

import json
import random
import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.operators import FILLS, operator_of, written_tensors
from torchyard.worker.values.pricing.recipes import FILL_FIRST, INSIDE, RecreatedCall, make_again
from torchyard.worker.values.proofs.trial_inputs import flat_results, poisons_for, put, same_bits
from torchyard.worker.values.redispatch import NativeEvents
from torchyard.worker.workload import CannotBuild

INTO_OWN_MEMORY = "the out= overload of the operator, with uninitialized memory"
WITHOUT_FILL = "the operator that overwrites it, without the preceding fill"
ONCE_MORE = (
    "the operator with the wasted work done twice, compared with the operator: a lower bound"
)


class Way(nn.Module):
    """One way to run an operator; its tensors are the inputs, in order."""

    def __init__(self, body: Callable[[List[Any]], Any]) -> None:
        super().__init__()
        self._body = body
        self.fixed: Optional["Way"] = None
        self.method = ""

    def forward(self, *tensors: Any) -> Any:
        """Run it."""
        return self._body(list(tensors))


def make(recipe: str) -> Tuple[Way, Tuple[Any, ...]]:
    """Return the workload of a recipe file: the unmodified operator and its inputs."""
    with open(recipe, encoding="utf-8") as file:
        data = json.load(file)
    way, tensors = open_pair(data)
    return way, tuple(tensors)


def fixed(module: Any) -> Any:
    """Return the workload with the fix; used as a backend."""
    return module.fixed


def method_of(data: Dict[str, Any]) -> str:
    """Return how the fix of a recipe is simulated; empty if it cannot be."""
    try:
        return open_pair(data)[0].method
    except Exception:
        return ""


def open_pair(data: Dict[str, Any]) -> Tuple[Way, List[Any]]:
    """Return the unmodified operator (with `.fixed`) and the tensors that both take."""
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
    way.fixed = Way(better)
    way.method = how
    return way


def _as_inputs(made: RecreatedCall) -> Tuple[List[Any], Callable[[List[Any]], Any]]:
    """Return the tensors among the arguments, and the operator as a function of them."""
    values = flat_results([made.args, list(made.kwargs.values())])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    func, args, kwargs = made.func, made.args, made.kwargs

    def call(given: List[Any]) -> Any:
        remaining = iter(given)
        return func(
            *[_put_in(value, remaining) for value in args],
            **{name: _put_in(value, remaining) for name, value in kwargs.items()},
        )

    return tensors, call


def _put_in(value: Any, left: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(left)
    if isinstance(value, list):
        return [_put_in(item, left) for item in value]
    return value


def _filled_first(
    made: RecreatedCall, call: Callable[[List[Any]], Any]
) -> Callable[[List[Any]], Any]:
    written = written_tensors(operator_of(made.func), made.args, made.kwargs)[0]
    tensors, _ = _as_inputs(made)
    position = next(index for index, tensor in enumerate(tensors) if tensor is written)

    def filled_first(given: List[Any]) -> Any:
        given[position].zero_()
        return call(given)

    return filled_first


def _into_own_memory(made: RecreatedCall) -> Optional[Callable[[List[Any]], Any]]:
    """Return the out= overload, if it gives the same result with fewer fills."""
    with_out = _overload_with_out(made.func)
    if with_out is None:
        return None
    overload, name = with_out
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
        remaining = iter(given)
        out = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return overload(
            *[_put_in(value, remaining) for value in args],
            **{key: _put_in(value, remaining) for key, value in kwargs.items()},
            **{name: out},
        )

    return into


def _overload_with_out(func: Any) -> Optional[Tuple[Any, str]]:
    """Return an overload with the same arguments and one output argument."""
    expected = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        if [(item.name, str(item.type)) for item in arguments[:-1]] != expected:
            continue
        last = arguments[-1]
        if last.alias_info is not None and last.alias_info.is_write:
            return overload, last.name
    return None


def _fills(events: NativeEvents) -> int:
    """Return the fills that are not inside another fill."""
    return sum(
        count
        for chain, count in events.chains.items()
        if chain[-1] in FILLS and not any(name in FILLS for name in chain[:-1])
    )


FORMAT = 1
METHOD = "%d samples of the operator alone, natively, in random order, caches warm and cold"
_GROUPS = 4
_COLD_BYTES = 64 << 20
"""Memory read before every second sample; larger than most last-level caches."""
_LEAST_SAMPLES = 8
_MOST_SAMPLES = 400
_SAMPLE_S = 0.0005
_SECONDS = 0.6
"""For one finding."""
_SEED = 1337


class Timed:
    """A sequence of operators to time."""

    def __init__(self, parts: List[RecreatedCall]) -> None:
        self._parts = parts
        self._before: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for part in parts:
            operator = operator_of(part.func)
            if operator.writes and not operator.overwrites:
                for tensor in written_tensors(operator, part.args, part.kwargs):
                    self._before.append((tensor, tensor.clone()))
        self.cuda = any(tensor.is_cuda for part in parts for tensor in _tensors(part))
        self.samples_ns: List[float] = []
        self.cpu_ns: List[float] = []
        self.cold_ns: List[float] = []
        """Times with cold caches."""
        self._inner = 1

    def warm(self) -> None:
        """Run it once untimed, and set the number of calls per sample."""
        self.sample()
        self.sample()
        took_ns = max(1.0, self.samples_ns[-1])
        if not self._before:  # written memory must be restored before each call
            self._inner = max(1, int(_SAMPLE_S * 1e9 / took_ns))
        self.samples_ns.clear()
        self.cpu_ns.clear()

    def sample_cold(self, cold: torch.Tensor) -> None:
        """Time one call with cold caches."""
        inner, self._inner = self._inner, 1
        cold.sum()
        self.sample()
        self._inner = inner
        wall_ns, cpu_ns = self.samples_ns.pop(), self.cpu_ns.pop()
        self.cold_ns.append(wall_ns if self._by_wall else cpu_ns)

    @property
    def warm_ns(self) -> List[float]:
        """Times with warm caches."""
        return self.samples_ns if self._by_wall else self.cpu_ns

    @property
    def _by_wall(self) -> bool:
        """Return the clock: CPU time does not cover a GPU, and includes spinning threads."""
        return self.cuda or torch.get_num_threads() > 1

    def sample(self) -> None:
        """Time it once more."""
        for tensor, before in self._before:
            tensor.copy_(before)
        self._wait()
        cpu_ns, began_ns = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(self._inner):
            for part in self._parts:
                part.func(*part.args, **part.kwargs)
        self._wait()
        took_ns = time.perf_counter_ns() - began_ns
        self.cpu_ns.append((time.process_time_ns() - cpu_ns) / self._inner)
        self.samples_ns.append(took_ns / self._inner)

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def price(recipe: Dict[str, Any], seconds: float = _SECONDS) -> Dict[str, Any]:
    """Time the wasted part of a finding, and the operator that it belongs to."""
    try:
        return _price(recipe, seconds)
    except Exception as error:  # an operator may reject generated arguments
        return {"unavailable": "%s: %s" % (type(error).__name__, str(error)[:160])}


def _price(recipe: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    if recipe.get("unavailable") or not recipe.get("wasted"):
        return {"unavailable": recipe.get("unavailable") or "no recipe was recorded"}
    sides = {"wasted": Timed([make_again(part) for part in recipe["wasted"]])}
    if recipe.get("operator"):
        sides["operator"] = Timed([make_again(recipe["operator"])])
    time_side_by_side(list(sides.values()), seconds)
    wasted = sides["wasted"]
    operator = sides.get("operator", wasted)
    share = recipe.get("share", 1.0)
    low, high, differ = _range(wasted)
    operator_low, operator_high, _ = _range(operator)
    return {
        "differ": differ,
        "operator_ns": min(operator.warm_ns),
        "wasted_ns": min(wasted.warm_ns) * share,
        "wasted_low_ns": low * share,
        "wasted_high_ns": high * share,
        "ratio_low": low * share / operator_high,
        "ratio_high": high * share / operator_low,
        "method": METHOD % len(wasted.samples_ns) + _by_bytes(share),
        "fix": method_of(recipe),
    }


def _range(side: Timed) -> Tuple[float, float, float]:
    """Return the fastest warm repeat, the slowest cold one, and the variation of warm repeats."""
    warm = [statistics.median(group) for group in _split(side.warm_ns)]
    cold = [statistics.median(group) for group in _split(side.cold_ns)]
    low = max(1.0, min(warm))
    return low, max(low, *warm, *cold), max(warm) / low


def _split(values: List[float]) -> List[List[float]]:
    count = min(_GROUPS, len(values))
    return [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]


def time_side_by_side(sides: List[Timed], seconds: float) -> None:
    """Take samples in random order until the time limit."""
    chance = random.Random(_SEED)
    with torch.no_grad():
        for side in sides:
            side.warm()
        device = "cuda" if any(side.cuda for side in sides) else "cpu"
        cold = torch.ones(_COLD_BYTES // 4, device=device)
        end_s = time.monotonic() + seconds
        rounds = 0
        while rounds < _LEAST_SAMPLES or (rounds < _MOST_SAMPLES and time.monotonic() < end_s):
            for side in chance.sample(sides, len(sides)):
                side.sample()
            for side in chance.sample(sides, len(sides)):
                side.sample_cold(cold)
            rounds += 1


def price_plan(plan: Dict[str, Any]) -> int:
    """Price every recipe of a plan, and write each price at once."""
    if plan.get("threads"):
        torch.set_num_threads(plan["threads"])
    prices: List[Optional[Dict[str, Any]]] = []
    for recipe in plan["price"]:
        prices.append(price(recipe, plan.get("seconds_each", _SECONDS)))
        write_result(plan["output"], {"format": FORMAT, "prices": prices})
    write_result(plan["output"], {"format": FORMAT, "prices": prices})
    return 0


def _by_bytes(share: float) -> str:
    return "" if share == 1.0 else "; the share of its bytes that is wasted"


def _tensors(part: RecreatedCall) -> List[torch.Tensor]:
    values = list(part.args) + list(part.kwargs.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


_GAIN_SAMPLE_S = 0.003
_LEAST_GAIN_PAIRS = 7

GAIN_METHOD = "%s; median of %d pairs in random order, one process"


def gain_of(recipe: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """Return the speedup `gain` and `gain_method`; empty if no fix can be simulated."""
    try:
        way, tensors = open_pair(recipe)
    except Exception:  # no fix, or arguments that cannot be recreated
        return {}
    cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in tensors)
    ways = [way, way.fixed]
    with torch.no_grad():
        took_s = [_sample(one, tensors, 1, cuda) for one in ways for _ in range(3)]
        calls = max(1, int(_GAIN_SAMPLE_S / max(min(took_s), 1e-7)))
        chance = random.Random(_SEED)
        ratios: List[float] = []
        end_s = time.monotonic() + seconds
        while len(ratios) < _LEAST_GAIN_PAIRS or time.monotonic() < end_s:
            times = [0.0, 0.0]
            for side in chance.sample((0, 1), 2):
                times[side] = _sample(ways[side], tensors, calls, cuda)
            ratios.append(times[0] / times[1])
    method = GAIN_METHOD % (way.method, len(ratios))
    return {"gain": statistics.median(ratios), "gain_method": method}


def _sample(way: Any, tensors: List[Any], calls: int, cuda: bool) -> float:
    """Return seconds per call: thread CPU time on the CPU, wall time on a device."""
    if cuda:
        torch.cuda.synchronize()
        began = time.perf_counter()
    else:
        began = time.thread_time()
    for _ in range(calls):
        way(*tensors)
    if not cuda:
        return (time.thread_time() - began) / calls
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls

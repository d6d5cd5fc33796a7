"""What wasted work costs on its own: operators made from recipes, timed natively and side by side.

Runs in a process of its own, where nothing is watched. Samples are taken in random order, so that a
disturbance meets all alike; every second one with cold caches. How much repeats differ stands beside
the price.
"""

import random
import statistics
import time
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.mending import method_of
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.recipes import Made, make_again
from torchyard.worker.values.result_file import write_result

FORMAT = 1
METHOD = "%d samples of the operator alone, natively, in random order, caches warm and cold"
_GROUPS = 4
_COLD_BYTES = 64 << 20
"""Read before every second sample: more than most last-level caches hold."""
_LEAST_SAMPLES = 8
_MOST_SAMPLES = 400
_SAMPLE_S = 0.0005
_SECONDS = 0.6
"""For one finding."""
_SEED = 1337


class Timed:
    """Something to time: one or more operators, one after the other."""

    def __init__(self, parts: List[Made]) -> None:
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
        """Once untimed; and how often a sample calls it."""
        self.sample()
        self.sample()
        took_ns = max(1.0, self.samples_ns[-1])
        if not self._before:  # what is written must be put back before each call
            self._inner = max(1, int(_SAMPLE_S * 1e9 / took_ns))
        self.samples_ns.clear()
        self.cpu_ns.clear()

    def sample_cold(self, cold: torch.Tensor) -> None:
        """Time one call after the caches were filled with something else."""
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
        """CPU time says nothing of a GPU, and of several threads it has those that only spin."""
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
    except Exception as error:  # what a made-up argument makes an operator raise is no price
        return {"unavailable": "%s: %s" % (type(error).__name__, str(error)[:160])}


def _price(recipe: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    if recipe.get("unavailable") or not recipe.get("wasted"):
        return {"unavailable": recipe.get("unavailable") or "nothing to measure was written down"}
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
    """Fastest repeat with warm caches, slowest with cold ones, and how much warm repeats differ."""
    warm = [statistics.median(group) for group in _split(side.warm_ns)]
    cold = [statistics.median(group) for group in _split(side.cold_ns)]
    low = max(1.0, min(warm))
    return low, max(low, *warm, *cold), max(warm) / low


def _split(values: List[float]) -> List[List[float]]:
    count = min(_GROUPS, len(values))
    return [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]


def time_side_by_side(sides: List[Timed], seconds: float) -> None:
    """Samples of each in random order, until the time is over."""
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
    """Price every recipe of a plan, and write the prices as they come."""
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


def _tensors(part: Made) -> List[torch.Tensor]:
    values = list(part.args) + list(part.kwargs.values())
    return [value for value in values if isinstance(value, torch.Tensor)]

"""How much faster an operator is with its fix simulated: both ways in turn, in one process.

A quick look for sweeps of hundreds of operators. Whoever wants intervals measures the pair with the
yard's own method.
"""

import random
import statistics
import time
from typing import Any, Dict, List

import torch

from torchyard.worker.values.mending import open_pair

_SAMPLE_S = 0.003
_LEAST_SAMPLES = 7
_SEED = 1337
METHOD = "%s; median of %d pairs in random order, one process"


def gain_of(recipe: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """`gain` (as it is : mended) and `gain_method`; empty where no fix can be simulated."""
    try:
        way, tensors = open_pair(recipe)
    except Exception:  # no fix, or arguments that cannot be made again: no gain is no mistake
        return {}
    cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in tensors)
    ways = [way, way.mended]
    with torch.no_grad():
        took_s = [_sample(one, tensors, 1, cuda) for one in ways for _ in range(3)]
        calls = max(1, int(_SAMPLE_S / max(min(took_s), 1e-7)))
        chance = random.Random(_SEED)
        ratios: List[float] = []
        end_s = time.monotonic() + seconds
        while len(ratios) < _LEAST_SAMPLES or time.monotonic() < end_s:
            times = [0.0, 0.0]
            for side in chance.sample((0, 1), 2):
                times[side] = _sample(ways[side], tensors, calls, cuda)
            ratios.append(times[0] / times[1])
    method = METHOD % (way.method, len(ratios))
    return {"gain": statistics.median(ratios), "gain_method": method}


def _sample(way: Any, tensors: List[Any], calls: int, cuda: bool) -> float:
    """Seconds for one call: of this thread on the CPU, of the clock on a device."""
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

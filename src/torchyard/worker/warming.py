"""Warm up until the time of an iteration is stable, not for a fixed count."""

import time
from statistics import median
from typing import Any, Dict, List

from torchyard.worker.side import Side
from torchyard.worker.timing import run_block

CHUNK_S = 0.08
STABLE_WITHIN = 0.03
MIN_CHUNKS = 3
LONG_S = 0.2
"""An iteration that takes longer is as warm after three calls as it will be, unless it still gets faster."""


def is_stable(chunks: List[float]) -> bool:
    """Three chunks in a row agree within 3 %, or six show no way down.

    The second rule is for times that are noisy by nature, such as short GPU kernels: they never
    agree, but they no longer get faster either.
    """
    recent, before = chunks[-MIN_CHUNKS:], chunks[-2 * MIN_CHUNKS : -MIN_CHUNKS]
    if len(recent) < MIN_CHUNKS:
        return False
    agree = max(recent) <= (1 + STABLE_WITHIN) * min(recent)
    if agree and min(recent) <= (1 + STABLE_WITHIN) * min(chunks):
        return True
    return len(before) == MIN_CHUNKS and median(recent) >= (1 - STABLE_WITHIN) * median(before)


def still_gets_faster(chunks: List[float]) -> bool:
    """Whether the latest of a few long iterations was the fastest by more than noise."""
    return len(chunks) < 2 or chunks[-1] < (1 - STABLE_WITHIN) * min(chunks[:-1])


def warm(side: Side, limit_s: float) -> Dict[str, Any]:
    """Run chunks until the time is stable, or the limit is used up; without a limit, call it once."""
    side.first_call()
    if limit_s <= 0:
        return {"first_call_s": side.first_call_s}
    started = time.perf_counter()
    once = run_block(side, 1, 1, 0, settle=False, flush_l2=False)["samples_ns"][0]
    long = once > LONG_S * 1e9
    chunks: List[float] = [once] if long else []
    iterations = 2
    stable = False
    while not stable and (time.perf_counter() - started < limit_s or len(chunks) < 1 + long):
        guess = chunks[-1] if chunks else once
        count = max(1, min(2000, int(CHUNK_S * 1e9 / max(guess, 1.0))))
        inner = 1 if side.model.training or count < 200 else count // 100
        samples = max(1, count // inner)
        block = run_block(side, inner, samples, 0, settle=False, flush_l2=False)
        chunks.append(median(block["samples_ns"]))
        iterations += samples * inner
        stable = not still_gets_faster(chunks) if long else is_stable(chunks)
    return {
        "first_call_s": side.first_call_s,
        "iteration_ns": chunks[-1],
        "iterations": iterations,
        "stable": stable,
        "warm_up_s": time.perf_counter() - started,
    }

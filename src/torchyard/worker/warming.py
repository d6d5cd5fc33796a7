"""Warm up until the time of an iteration is stable, not for a fixed count."""

import time
from statistics import median
from typing import Any, Dict, List

from torchyard.worker.side import Side
from torchyard.worker.timing import run_block

CHUNK_S = 0.08
STABLE_WITHIN = 0.03
MIN_CHUNKS = 3


def warm(side: Side, limit_s: float) -> Dict[str, Any]:
    """Run chunks until three in a row agree within 3 % and none later is faster, or time is up."""
    side.first_call()
    started = time.perf_counter()
    once = run_block(side, 1, 1, 0, settle=False, flush_l2=False)["samples_ns"][0]
    chunks: List[float] = []
    iterations = 2
    stable = False
    while not stable and (time.perf_counter() - started < limit_s or len(chunks) < 1):
        guess = chunks[-1] if chunks else once
        count = max(1, min(2000, int(CHUNK_S * 1e9 / max(guess, 1.0))))
        inner = 1 if side.model.training or count < 200 else count // 100
        samples = max(1, count // inner)
        block = run_block(side, inner, samples, 0, settle=False, flush_l2=False)
        chunks.append(median(block["samples_ns"]))
        iterations += samples * inner
        recent = chunks[-MIN_CHUNKS:]
        stable = (
            len(recent) == MIN_CHUNKS
            and max(recent) <= (1 + STABLE_WITHIN) * min(recent)
            and min(recent) <= (1 + STABLE_WITHIN) * min(chunks)
        )
    return {
        "first_call_s": side.first_call_s,
        "iteration_ns": chunks[-1],
        "iterations": iterations,
        "stable": stable,
        "warm_up_s": time.perf_counter() - started,
    }

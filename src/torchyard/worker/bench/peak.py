"""Peak rates of the device: matrix products, and copying or combining arrays (STREAM).

One rate per request, so that the controller chooses sizes, shows progress and can stop. The best of
several short runs is used: disturbances only make a run slower.
"""

import time
from typing import Any, Callable, Dict

import torch

from torchyard.worker.bench.model import DTYPES
from torchyard.worker.devices import device_of
from torchyard.worker.host_memory import cache_sizes
from torchyard.worker.workload import CannotBuild

RUN_S = 0.005
"""Duration of a run: long enough for call overhead and clock resolution to be negligible, short enough
to fit between two disturbances."""
FEWEST_RUNS = 3
CUDA_CACHE_BYTES = 64 * 2**20
"""Assumed last-level cache size where torch does not report it; larger than any at the time."""
CPU_CACHE_BYTES = 32 * 2**20
UNKNOWN_FREE_BYTES = 2**30


def answer(
    what: str, device: str, precision: str = "float32", size: int = 0, seconds: float = 0.0
) -> Dict[str, Any]:
    """Return the `limits`, or the best rate of a `product`, a `copy` or a `triad` of that size."""
    hardware = device_of(device)
    hardware.check()
    hardware.select()
    if what == "limits":
        return {"last_cache_bytes": last_cache_bytes(device), "free_bytes": free_bytes(device)}
    if what == "product":
        return product(device, precision, size, seconds)
    if what in ("copy", "triad"):
        return stream(what, device, size, seconds)
    raise CannotBuild("unknown peak rate " + repr(what))


def product(device: str, precision: str, size: int, seconds: float) -> Dict[str, Any]:
    """Return the operations per second of a square matrix product."""
    dtype = _product_dtype(device, precision)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty(size, size, device=device, dtype=dtype)
    best_s, runs = best_time_s(lambda: torch.matmul(left, right, out=result), device, seconds)
    return {"flops_per_second": 2.0 * size**3 / best_s, "call_s": best_s, "runs": runs}


def stream(kind: str, device: str, working_set_bytes: int, seconds: float) -> Dict[str, Any]:
    """Return the bytes per second, read and written, of float32 arrays of that total size."""
    arrays = 2 if kind == "copy" else 3
    elements = max(1, working_set_bytes // arrays // 4)
    source, other, result = (
        torch.ones(elements if index < arrays else 0, device=device) for index in range(3)
    )
    if kind == "copy":
        best_s, runs = best_time_s(lambda: other.copy_(source), device, seconds)
    else:
        best_s, runs = best_time_s(
            lambda: torch.add(source, other, alpha=0.5, out=result), device, seconds
        )
    return {"bytes_per_second": arrays * elements * 4 / best_s, "call_s": best_s, "runs": runs}


def best_time_s(call: Callable[[], Any], device: str, seconds: float) -> Any:
    """Return the shortest time of a call over repeated runs, and the number of runs."""
    wait = device_of(device).synchronize
    with torch.no_grad():
        call()  # loads kernels, touches pages
        wait()
        started = time.perf_counter()
        call()
        wait()
        calls = max(1, int(RUN_S / max(1e-7, time.perf_counter() - started)))
        best_s, runs, began = float("inf"), 0, time.perf_counter()
        while runs < FEWEST_RUNS or time.perf_counter() - began < seconds:
            started = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            best_s = min(best_s, (time.perf_counter() - started) / calls)
            runs += 1
    return best_s, runs


def last_cache_bytes(device: str) -> int:
    """Return the size of the last-level cache, or an upper estimate when it is unknown."""
    hardware = device_of(device)
    if not hardware.is_host:
        return hardware.cache_bytes() or CUDA_CACHE_BYTES
    by_level: Dict[str, int] = {}
    for name, size in cache_sizes().items():
        by_level[name.split()[0]] = by_level.get(name.split()[0], 0) + size
    return max(by_level.values()) if by_level else CPU_CACHE_BYTES


def free_bytes(device: str) -> int:
    """Return the available memory; where it is unknown, enough for the smallest sizes only."""
    return device_of(device).free_bytes() or UNKNOWN_FREE_BYTES


def _product_dtype(device: str, precision: str) -> Any:
    """Return the data type of matrix products in a precision; for `amp` it depends on the device."""
    if precision == "amp":
        return torch.bfloat16 if device_of(device).is_host else torch.float16
    return DTYPES[precision]

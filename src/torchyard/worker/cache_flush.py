"""Cold caches: overwrite more memory than the last-level cache holds, before each timed iteration.

On CUDA a buffer of twice the L2 cache is set to zero. On the CPU a buffer of twice the largest cache
is read and written: a plain fill may use stores that bypass the cache and evict nothing. Nothing here
is inside the timed part.
"""

import glob
import time
from typing import Dict

import torch

from torchyard.worker.devices import CudaDevice, cuda_device

SECONDS_IN_A_BLOCK = 0.5
"""Flushing may add about this much to a block, whatever its number of iterations."""
FEWEST_SAMPLES = 5
SMALLEST_BYTES = 16 << 20
LARGEST_BYTES = 1 << 30
UNKNOWN_CPU_CACHE_BYTES = 64 << 20
UNKNOWN_GPU_CACHE_BYTES = 128 << 20

_flushes: Dict[str, "Flush"] = {}


class Flush:
    """Evicts what the caches of one device hold; knows what that costs."""

    def __init__(self, device: str) -> None:
        self._cuda = cuda_device(device)
        cache_bytes = cpu_cache_bytes() if self._cuda is None else _gpu_cache_bytes(self._cuda)
        self.size_bytes = min(LARGEST_BYTES, max(SMALLEST_BYTES, 2 * cache_bytes))
        self._buffer = torch.zeros(self.size_bytes // 4, dtype=torch.int32, device=device)
        self()
        self._synchronize()
        started_ns = time.perf_counter_ns()
        self()
        self._synchronize()
        self.cost_s = (time.perf_counter_ns() - started_ns) / 1e9

    def __call__(self) -> None:
        """Flush once. On CUDA this only submits the work, in front of what is timed."""
        if self._cuda is None:
            self._buffer.bitwise_not_()
        else:
            self._buffer.zero_()

    def affordable(self, iterations: int) -> int:
        """How many iterations of a block may be flushed before, each of them a sample."""
        most = max(FEWEST_SAMPLES, int(SECONDS_IN_A_BLOCK / max(self.cost_s, 1e-9)))
        return max(1, min(iterations, most))

    def _synchronize(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize()


def flush_for(device: str) -> Flush:
    """The flush of a device, made once in a process."""
    if device not in _flushes:
        _flushes[device] = Flush(device)
    return _flushes[device]


def cpu_cache_bytes() -> int:
    """Size of the largest cache of a CPU, as the kernel tells it."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    largest = 0
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
            largest = max(largest, int(text[:-1]) * units[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return largest or UNKNOWN_CPU_CACHE_BYTES


def _gpu_cache_bytes(cuda: CudaDevice) -> int:
    return int(getattr(cuda.properties(), "L2_cache_size", 0) or UNKNOWN_GPU_CACHE_BYTES)

"""The devices that Torchyard measures on: the CPU, and CUDA devices by index.

Functions of `torch.cuda` without a device argument use the current device, which is 0 by default. All
calls for a CUDA device go through this module and pass its index. On ROCm the device type is `cuda`, too.
"""

import contextlib
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.workload import CannotBuild

NAMES = "use cpu, cuda or cuda:N"

_torch_cuda = SimpleNamespace(**vars(torch.cuda))
"""`torch.cuda` before any user code runs: a variant that replaces its functions cannot change the timing."""


class CudaDevice:
    """One CUDA device. `cuda` is the namespace to use [default: `torch.cuda`]."""

    def __init__(self, name: str, cuda: Any = None) -> None:
        self.index = int(torch.device(name).index or 0)
        self.name = "cuda:%d" % self.index
        self._cuda = _torch_cuda if cuda is None else cuda

    def check(self) -> None:
        """Raise CannotBuild when this process does not see the device."""
        if not self._cuda.is_available():
            raise CannotBuild(
                "no CUDA device is available in this target",
                hint="use --device cpu, or a target built with CUDA",
            )
        count = int(self._cuda.device_count())
        if self.index >= count:
            available = "cuda:0" if count == 1 else "cuda:0 to cuda:%d" % (count - 1)
            raise CannotBuild(
                "there is no %s: this target has %s" % (self.name, available), hint=NAMES
            )

    def select(self) -> None:
        """Make it the current device of this thread."""
        self._cuda.set_device(self.index)

    def use(self) -> Any:
        """Make it the current device inside a `with` block."""
        return self._cuda.device(self.index)

    def synchronize(self) -> None:
        """Wait for all work submitted to the device."""
        self._cuda.synchronize(self.index)

    def stream(self) -> Any:
        """Return the current stream of the device."""
        return self._cuda.current_stream(self.index)

    def events(self, count: int) -> List[Any]:
        """Return timing events. They belong to the device of the stream that they are recorded on."""
        return [self._cuda.Event(enable_timing=True) for _ in range(count)]

    def properties(self) -> Any:
        """Return the device properties."""
        return self._cuda.get_device_properties(self.index)

    def capability(self) -> Tuple[int, int]:
        """Return the compute capability."""
        major, minor = self._cuda.get_device_capability(self.index)
        return int(major), int(minor)

    def free_bytes(self) -> int:
        """Return the free device memory, without the cache of this process's allocator."""
        return int(self._cuda.mem_get_info(self.index)[0])

    def reserved_bytes(self) -> int:
        """Return the memory that the allocator caches and no tensor uses."""
        return int(self._cuda.memory_reserved(self.index) - self._cuda.memory_allocated(self.index))

    def allocated_bytes(self) -> int:
        """Return the memory of live tensors."""
        return int(self._cuda.memory_allocated(self.index))

    def peak_bytes(self) -> int:
        """Return the peak memory of live tensors since `reset_peak`."""
        return int(self._cuda.max_memory_allocated(self.index))

    def reset_peak(self) -> None:
        """Reset the peak memory counter."""
        self._cuda.reset_peak_memory_stats(self.index)

    def memory_pools(self) -> Set[Tuple[Any, ...]]:
        """Return the ids of the allocator's pools on the device; the default pool is (0, 0)."""
        segments: List[Dict[str, Any]] = self._cuda.memory_snapshot()
        own = [s for s in segments if s.get("device", self.index) == self.index]
        return {tuple(segment.get("segment_pool_id", (0, 0))) for segment in own}

    def empty_cache(self) -> None:
        """Release the memory that the allocator caches."""
        with self.use():
            self._cuda.empty_cache()


def current_cuda() -> Any:
    """Return the CUDA device that is selected in this process."""
    return torch.device("cuda", torch.cuda.current_device())


def cuda_device(name: str) -> Optional[CudaDevice]:
    """Return the CUDA device of that name, None for the CPU; raise CannotBuild for others."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise CannotBuild(str(error).splitlines()[0], hint=NAMES) from error
    if device.type == "cuda":
        return CudaDevice(name)
    if device.type != "cpu" or device.index is not None:
        raise CannotBuild("Torchyard cannot measure on the device " + repr(name), hint=NAMES)
    return None


def using(name: str) -> Any:
    """Return a context manager that makes the device the current one."""
    cuda = cuda_device(name)
    return contextlib.nullcontext() if cuda is None else cuda.use()

"""The devices that Torchyard measures on: the processor, and CUDA devices by their index.

`torch.cuda` works on the current device wherever a call names none, and the current device is 0 until
somebody changes it. So everything that is asked of a CUDA device goes through here and names it.
ROCm's torch calls its devices `cuda`, too.
"""

import contextlib
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.workload import CannotBuild

NAMES = "use cpu, cuda or cuda:N"

_torch_cuda = SimpleNamespace(**vars(torch.cuda))
"""`torch.cuda` before any code of the user's runs: a variant that replaces its functions does not change
the timing."""


class CudaDevice:
    """One CUDA device. `cuda` is the namespace that is asked, which is `torch.cuda`."""

    def __init__(self, name: str, cuda: Any = None) -> None:
        self.index = int(torch.device(name).index or 0)
        self.name = "cuda:%d" % self.index
        self._cuda = _torch_cuda if cuda is None else cuda

    def check(self) -> None:
        """Raise CannotBuild when this process does not see the device."""
        if not self._cuda.is_available():
            raise CannotBuild(
                "this target sees no CUDA device",
                hint="use --device cpu, or a target built for CUDA",
            )
        count = int(self._cuda.device_count())
        if self.index >= count:
            seen = "cuda:0" if count == 1 else "cuda:0 to cuda:%d" % (count - 1)
            raise CannotBuild("there is no %s: this target sees %s" % (self.name, seen), hint=NAMES)

    def select(self) -> None:
        """Make it the current device of this thread, for code that names none."""
        self._cuda.set_device(self.index)

    def use(self) -> Any:
        """Make it the current device inside a `with` block."""
        return self._cuda.device(self.index)

    def synchronize(self) -> None:
        """Wait until it has done everything that was submitted to it."""
        self._cuda.synchronize(self.index)

    def stream(self) -> Any:
        """The stream that work on it goes to now."""
        return self._cuda.current_stream(self.index)

    def events(self, count: int) -> List[Any]:
        """Timing events. They belong to the device of the stream that they are recorded on."""
        return [self._cuda.Event(enable_timing=True) for _ in range(count)]

    def properties(self) -> Any:
        """What it is."""
        return self._cuda.get_device_properties(self.index)

    def capability(self) -> Tuple[int, int]:
        """Compute capability."""
        major, minor = self._cuda.get_device_capability(self.index)
        return int(major), int(minor)

    def free_bytes(self) -> int:
        """Memory that a process could still take, beside what this one holds in reserve."""
        return int(self._cuda.mem_get_info(self.index)[0])

    def reserved_bytes(self) -> int:
        """Memory that the allocator holds and no tensor uses."""
        return int(self._cuda.memory_reserved(self.index) - self._cuda.memory_allocated(self.index))

    def allocated_bytes(self) -> int:
        """Memory of tensors that are alive."""
        return int(self._cuda.memory_allocated(self.index))

    def peak_bytes(self) -> int:
        """The most of it since `reset_peak`."""
        return int(self._cuda.max_memory_allocated(self.index))

    def reset_peak(self) -> None:
        """Count the peak from now on."""
        self._cuda.reset_peak_memory_stats(self.index)

    def memory_pools(self) -> Set[Tuple[Any, ...]]:
        """Numbers of the allocator's pools on it; the ordinary one is (0, 0)."""
        segments: List[Dict[str, Any]] = self._cuda.memory_snapshot()
        own = [s for s in segments if s.get("device", self.index) == self.index]
        return {tuple(segment.get("segment_pool_id", (0, 0))) for segment in own}

    def empty_cache(self) -> None:
        """Give back what the allocator holds in reserve."""
        with self.use():
            self._cuda.empty_cache()


def cuda_device(name: str) -> Optional[CudaDevice]:
    """The CUDA device of that name; None for the processor. Raises CannotBuild for others."""
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
    """A `with` block in which code that names no device works on this one."""
    cuda = cuda_device(name)
    return contextlib.nullcontext() if cuda is None else cuda.use()

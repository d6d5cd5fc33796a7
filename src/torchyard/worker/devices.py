# ruff: noqa: D102 - methods are documented in `Device`
"""The devices that Torchyard measures on, behind one interface: the CPU, CUDA devices, other accelerators.

`device_of` returns the device of a name. All calls that depend on a device go through it and pass its
index: functions without a device argument use the current device, which is 0 by default. On ROCm the
device type is `cuda`, too. Other accelerators (XPU, MPS, backends of the PrivateUse1 key) are used through
`torch.accelerator`. Torchyard was never tested on them, so it checks what their results depend on, and
says in `notes` what it could not use.
"""

import contextlib
import time
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.host_memory import allocatable_bytes, status_bytes
from torchyard.worker.workload import CannotBuild, first_line

NAMES = "use cpu, cuda or cuda:N, or the accelerator of another target's torch"
UNTESTED = "measured on %s, a kind of device that Torchyard was never tested on"
PROBE_S = 0.005
PROBE_BYTES = 1 << 20
OutOfMemoryError = torch.cuda.OutOfMemoryError
"""Raised by the allocators of all accelerators."""

_torch_cuda = SimpleNamespace(**vars(torch.cuda))
_torch_accelerator = SimpleNamespace(**vars(getattr(torch, "accelerator", SimpleNamespace())))
_event_type: Any = getattr(torch, "Event", None)
_clock = time.perf_counter_ns
"""Functions of torch and Python before any user code runs: a variant that replaces them cannot change the timing."""


class Device:
    """The CPU, and the default of every method. None: unavailable."""

    kind = "cpu"
    title = "CPU"
    index = 0
    name = "cpu"
    is_host = True
    """Whether calls return after their work is done."""
    notes: Tuple[str, ...] = ()
    """What a reader of results on this device has to know."""
    why_no_memory = ""
    """Why there are no memory statistics."""

    def check(self) -> None:
        """Raise CannotBuild when this process cannot use the device."""

    def select(self) -> None:
        """Make it the current device of this thread."""

    def use(self) -> Any:
        """Make it the current device inside a `with` block."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait for all work submitted to the device."""

    @property
    def comparison_place(self) -> str:
        """The device on which results are compared in float64."""
        return self.name

    def label(self) -> str:
        """Return the model of the device."""
        return ""

    def stream(self) -> Any:
        """Return the current stream of the device."""

    def events(self, count: int) -> List[Any]:
        """Return timing events. They belong to the device of the stream that they are recorded on."""
        return [HostEvent(self) for _ in range(count)]

    def activities(self) -> List[Any]:
        """Return what the profiler records."""
        return [torch.profiler.ProfilerActivity.CPU]

    def random_state(self) -> Optional[Any]:
        """Return the state of the random number generators, without that of the CPU."""

    def set_random_state(self, state: Any) -> None:
        """Restore a state that `random_state` returned."""

    def has_tf32(self) -> bool:
        """Whether float32 matrix products may round their operands to TF32."""
        return False

    def cache_bytes(self) -> Optional[int]:
        """Return the size of the last-level cache of an accelerator."""
        return None

    def total_bytes(self) -> Optional[int]:
        """Return the size of the memory of an accelerator."""
        return None

    def free_bytes(self) -> Optional[int]:
        """Return the bytes that this process can allocate, including those that its allocator caches."""
        return allocatable_bytes()

    def allocated_bytes(self) -> Optional[int]:
        """Return the memory of live tensors."""
        return None

    def peak_bytes(self) -> Optional[int]:
        """Return the peak memory of live tensors since `reset_peak`; on the CPU that of the process."""
        return status_bytes("VmHWM")

    def reset_peak(self) -> None:
        """Reset the peak memory counter."""

    def memory_pools(self) -> Set[Tuple[Any, ...]]:
        """Return the ids of the allocator's pools on the device; the default pool is (0, 0)."""
        return {(0, 0)}

    def empty_cache(self) -> None:
        """Release the memory that the allocator caches."""


class HostEvent:
    """A timing event for devices without one: waits for the device, then reads the host's clock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._time_ns = 0

    def record(self, stream: Any) -> None:  # noqa: ARG002 - the interface of torch's events
        """Wait for the device and read the clock."""
        self._device.synchronize()
        self._time_ns = _clock()

    def synchronize(self) -> None:
        """Do nothing: `record` has waited."""

    def elapsed_time(self, end: "HostEvent") -> float:
        """Return the milliseconds until the other event."""
        return (end._time_ns - self._time_ns) / 1e6


class CudaDevice(Device):
    """One CUDA device. `cuda` is the namespace to use [default: `torch.cuda`]."""

    kind = "cuda"
    title = "CUDA"
    is_host = False

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
        _check_index(self, int(self._cuda.device_count()))

    def select(self) -> None:
        self._cuda.set_device(self.index)

    def use(self) -> Any:
        return self._cuda.device(self.index)

    def synchronize(self) -> None:
        self._cuda.synchronize(self.index)

    def label(self) -> str:
        return str(self._cuda.get_device_name(self.index)) if self._cuda.is_available() else ""

    def stream(self) -> Any:
        return self._cuda.current_stream(self.index)

    def events(self, count: int) -> List[Any]:
        return [self._cuda.Event(enable_timing=True) for _ in range(count)]

    def activities(self) -> List[Any]:
        return [*super().activities(), torch.profiler.ProfilerActivity.CUDA]

    def random_state(self) -> Any:
        return self._cuda.get_rng_state_all()

    def set_random_state(self, state: Any) -> None:
        self._cuda.set_rng_state_all(state)

    def has_tf32(self) -> bool:
        return bool(self._cuda.get_device_capability(self.index) >= (8, 0))

    def cache_bytes(self) -> Optional[int]:
        return getattr(self._cuda.get_device_properties(self.index), "L2_cache_size", None) or None

    def total_bytes(self) -> int:
        return int(self._cuda.get_device_properties(self.index).total_memory)

    def free_bytes(self) -> int:
        cached = self._cuda.memory_reserved(self.index) - self._cuda.memory_allocated(self.index)
        return int(self._cuda.mem_get_info(self.index)[0] + cached)

    def allocated_bytes(self) -> int:
        return int(self._cuda.memory_allocated(self.index))

    def peak_bytes(self) -> int:
        return int(self._cuda.max_memory_allocated(self.index))

    def reset_peak(self) -> None:
        self._cuda.reset_peak_memory_stats(self.index)

    def memory_pools(self) -> Set[Tuple[Any, ...]]:
        segments: List[Dict[str, Any]] = self._cuda.memory_snapshot()
        own = [s for s in segments if s.get("device", self.index) == self.index]
        return {tuple(segment.get("segment_pool_id", (0, 0))) for segment in own}

    def empty_cache(self) -> None:
        with self.use():
            self._cuda.empty_cache()


class AcceleratorDevice(Device):
    """One device of an accelerator other than CUDA, through `torch.accelerator`."""

    is_host = False
    comparison_place = "cpu"  # many have no float64

    def __init__(self, name: str) -> None:
        device = torch.device(name)
        self.kind = self.title = device.type
        self.index = int(device.index or 0)
        self.name = "%s:%d" % (self.kind, self.index)
        self._api = _torch_accelerator
        self._module: Any = None
        self._only_one = True
        self._has_events = False
        self.is_checked = False

    def check(self) -> None:
        """Raise CannotBuild when this process cannot use the device; else examine what it supports."""
        if self.is_checked:
            return
        if not hasattr(self._api, "device_index"):
            raise CannotBuild(
                "torch %s cannot measure on %r" % (torch.__version__, self.kind),
                hint="use torch 2.8 or newer, or cpu, cuda or cuda:N",
            )
        kind = accelerator_kind()
        if kind != self.kind:
            raise CannotBuild(
                "%r is not an accelerator of this target's torch, which has %s"
                % (self.kind, repr(kind) if kind else "none"),
                hint=NAMES,
            )
        if not self._api.is_available():
            raise CannotBuild("no %s device is available in this target" % self.kind, hint=NAMES)
        count = int(self._api.device_count())
        _check_index(self, count)
        self._module = torch.get_device_module(self.kind)
        self._only_one = count == 1
        self.is_checked = True
        with self.use():
            self._examine()

    def _examine(self) -> None:
        self.why_no_memory = self._find_why_no_memory()
        notes = [UNTESTED % self.kind]
        reason = self._why_no_events()
        self._has_events = not reason
        if reason:
            notes.append(
                "timed by the clock of the host, with a synchronization before and after each sample, "
                "because the events of %s cannot be used: %s" % (self.kind, reason)
            )
        if self.random_state() is None:
            notes.append("the random number generator of %s cannot be restored" % self.kind)
        self.notes = tuple(notes)

    def _why_no_events(self) -> str:
        """Return why events cannot time: an error, or a known interval that they report wrongly."""
        try:
            start, end = self._torch_events(2)
            began_ns = _clock()
            start.record(self._stream())
            start.synchronize()
            time.sleep(PROBE_S)
            end.record(self._stream())
            end.synchronize()
            host_ms = (_clock() - began_ns) / 1e6
            event_ms = float(start.elapsed_time(end))
        except Exception as error:
            return first_line(error) or type(error).__name__
        if 0.5 * PROBE_S * 1e3 <= event_ms <= 1.1 * host_ms + 1.0:
            return ""
        return "they measured %.2f ms in an interval of %.2f ms" % (event_ms, host_ms)

    def _find_why_no_memory(self) -> str:
        """Return why memory cannot be measured: an error, or an allocation that is not counted."""
        try:
            before = self._memory("allocated_bytes.all.current")
            probe = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=self.name)
            counted = self._memory("allocated_bytes.all.current") - before
            del probe
            self.reset_peak()
            peak = self._memory("allocated_bytes.all.peak")
        except Exception:  # not in this torch, or not for this device
            return "torch.accelerator has no memory statistics of " + self.kind
        if counted < PROBE_BYTES or peak >= before + PROBE_BYTES:
            return "the memory statistics of %s do not follow allocations" % self.kind
        return ""

    def select(self) -> None:
        if not self._only_one:
            self._api.set_device_index(self.index)

    def use(self) -> Any:
        return contextlib.nullcontext() if self._only_one else self._api.device_index(self.index)

    def synchronize(self) -> None:
        self._api.synchronize(self.index)

    def label(self) -> str:
        name = getattr(torch.get_device_module(self.kind), "get_device_name", None)
        return "" if name is None else str(name(self.index))

    def stream(self) -> Any:
        return self._stream() if self._has_events else None

    def _stream(self) -> Any:
        return self._api.current_stream(self.index)

    def events(self, count: int) -> List[Any]:
        return self._torch_events(count) if self._has_events else super().events(count)

    def _torch_events(self, count: int) -> List[Any]:
        return [_event_type(self.name, enable_timing=True) for _ in range(count)]

    def activities(self) -> List[Any]:
        own = getattr(torch.profiler.ProfilerActivity, self.kind.upper(), None)
        supported = own in torch.profiler.supported_activities()
        return [*super().activities(), own] if supported else super().activities()

    def random_state(self) -> Optional[Any]:
        if not all(hasattr(self._module, name) for name in ("get_rng_state", "set_rng_state")):
            return None
        return self._module.get_rng_state(self.index)

    def set_random_state(self, state: Any) -> None:
        self._module.set_rng_state(state, self.index)

    def _memory(self, name: str) -> int:
        return int(self._api.memory_stats(self.index)[name])

    def _free_and_total(self) -> Tuple[Optional[int], Optional[int]]:
        try:
            free, total = self._api.get_memory_info(self.index)
        except Exception:  # not in this torch, or not for this device
            return None, None
        return int(free), int(total)

    def total_bytes(self) -> Optional[int]:
        return self._free_and_total()[1]

    def free_bytes(self) -> Optional[int]:
        free = self._free_and_total()[0]
        if free is None or self.why_no_memory:
            return free
        reserved = self._memory("reserved_bytes.all.current")
        return free + max(0, reserved - self._memory("allocated_bytes.all.current"))

    def allocated_bytes(self) -> Optional[int]:
        return None if self.why_no_memory else self._memory("allocated_bytes.all.current")

    def peak_bytes(self) -> Optional[int]:
        return None if self.why_no_memory else self._memory("allocated_bytes.all.peak")

    def reset_peak(self) -> None:
        self._api.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        if not self.why_no_memory:
            with self.use():
                self._api.empty_cache()


def _check_index(device: Device, count: int) -> None:
    if device.index >= count:
        available = "%s:0" % device.kind
        if count > 1:
            available += " to %s:%d" % (device.kind, count - 1)
        raise CannotBuild(
            "there is no %s: this target has %s" % (device.name, available), hint=NAMES
        )


def accelerator_kind() -> str:
    """Return the device type of torch's accelerator; empty without one, or before torch 2.6."""
    try:
        current = getattr(_torch_accelerator, "current_accelerator", lambda: None)()
    except RuntimeError:  # torch 2.6 without an accelerator
        return ""
    return "" if current is None else str(current.type)


_cpu = Device()
_accelerators: Dict[str, AcceleratorDevice] = {}


def is_known(name: str) -> bool:
    """Whether this torch knows the type of the device; a backend is unknown before it is imported."""
    try:
        torch.device(name)
    except (RuntimeError, TypeError):
        return False
    return True


def device_of(name: str) -> Device:
    """Return the device of that name; raise CannotBuild for one that Torchyard cannot measure on."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise CannotBuild(first_line(error) or type(error).__name__, hint=NAMES) from error
    if device.type == "cuda":
        return CudaDevice(name)
    if device.type == "meta":
        raise CannotBuild("tensors on the meta device have no data to compute with", hint=NAMES)
    if device.type == "cpu":
        if device.index is not None:
            raise CannotBuild("Torchyard cannot measure on the device " + repr(name), hint=NAMES)
        return _cpu
    return _accelerators.setdefault(
        "%s:%d" % (device.type, device.index or 0), AcceleratorDevice(name)
    )


def visible() -> List[str]:
    """Return the devices of this process, accelerators with their model."""
    devices: List[Device] = []
    if _torch_cuda.is_available():
        devices += [CudaDevice("cuda:%d" % i) for i in range(_torch_cuda.device_count())]
    kind = accelerator_kind()
    if kind not in ("", "cuda") and _torch_accelerator.is_available():
        count = _torch_accelerator.device_count()
        devices += [AcceleratorDevice("%s:%d" % (kind, index)) for index in range(count)]
    return ["cpu", *(("%s %s" % (one.name, one.label())).strip() for one in devices)]


def has_accelerator() -> bool:
    """Whether this process can compute on something else than the CPU."""
    return bool(
        _torch_cuda.is_available() or (accelerator_kind() and _torch_accelerator.is_available())
    )


def current_accelerator() -> Optional[Any]:
    """Return the accelerator that is selected in this process, if one is in use."""
    if _torch_cuda.is_initialized():
        return torch.device("cuda", _torch_cuda.current_device())
    kind = accelerator_kind()
    module = torch.get_device_module(kind) if kind not in ("", "cuda") else None
    if module is None or not getattr(module, "is_initialized", module.is_available)():
        return None
    return torch.device(kind, _torch_accelerator.current_device_index())


def random_states() -> List[Tuple[Device, Any]]:
    """Return the states of the random number generators of all accelerators in use."""
    used: List[Device] = [one for one in _accelerators.values() if one.is_checked]
    if _torch_cuda.is_available() and _torch_cuda.is_initialized():
        used.append(CudaDevice("cuda"))
    states = [(device, device.random_state()) for device in used]
    return [(device, state) for device, state in states if state is not None]

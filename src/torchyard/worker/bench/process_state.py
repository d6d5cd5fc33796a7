"""Detect and restore process-wide state that a variant changes. Runs inside the target.

State beyond a variant's own objects (threads, default data type, clocks, ...) is read before and after its calls,
restored, and reported; what cannot be restored makes measurements untrustworthy. Functions that all variants depend
on are compared by identity with those present before any user code was loaded.
"""

import gc
import os
import random
import signal
import sys
import time
import tracemalloc
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.devices import random_states

Reader = Callable[[], Any]
Writer = Callable[[Any], Any]

_AUTOGRAD: Any = getattr(torch._C, "_autograd", None)
_ENVIRONMENT_OF_COMPILERS = ("TORCH", "TRITON", "PYTORCH", "CUDA", "KINETO", "NCCL")


class Item(NamedTuple):
    """One piece of state: its name, its reader and its writer."""

    name: str
    read: Reader
    write: Optional[Writer]


class Change(NamedTuple):
    """A change by a variant, and whether it was restored."""

    text: str
    restored: bool


_DENORMAL = torch.tensor(1e-40)


def _affinity() -> Any:
    reader = getattr(os, "sched_getaffinity", None)
    return None if reader is None else frozenset(reader(0))


def _set_affinity(cores: Any) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)


def _default_device() -> str:
    reader = getattr(torch, "get_default_device", None)
    return "cpu" if reader is None else str(reader())


def _set_default_device(device: str) -> None:
    torch.set_default_device(None if device == "cpu" else device)


def _set_gc_state(value: Tuple[bool, Tuple[int, int, int]]) -> None:
    enabled, threshold = value
    if enabled:
        gc.enable()
    else:
        gc.disable()
    gc.set_threshold(*threshold)


def _autocast() -> Tuple[Any, ...]:
    try:
        on_cpu = torch.is_autocast_enabled("cpu")
    except TypeError:  # before torch 2.4
        on_cpu = torch.is_autocast_cpu_enabled()
    return torch.is_autocast_enabled(), torch.is_autocast_cache_enabled(), on_cpu


def _set_autocast(value: Tuple[Any, ...]) -> None:
    torch.set_autocast_enabled(value[0])
    torch.set_autocast_cache_enabled(value[1])
    try:
        torch.set_autocast_enabled("cpu", value[2])
    except TypeError:  # before torch 2.4
        torch.set_autocast_cpu_enabled(value[2])


def _environment() -> Dict[str, str]:
    """Return the environment without variables that compilers set at their first use."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.lstrip("_").startswith(_ENVIRONMENT_OF_COMPILERS)
    }


def _set_environment(variables: Dict[str, str]) -> None:
    for name in _environment():
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables)


def _modes() -> Tuple[int, int]:
    """Return the number of active torch function and dispatch modes."""
    functions = getattr(torch._C, "_len_torch_function_stack", None)
    dispatch = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return (
        int(functions()) if functions is not None else 0,
        int(dispatch()) if dispatch is not None else 0,
    )


def _set_modes(counts: Tuple[int, int]) -> None:
    pop_function = getattr(torch._C, "_pop_torch_function_stack", None)
    pop_dispatch = getattr(torch._C, "_pop_torch_dispatch_stack", None)
    while pop_function is not None and _modes()[0] > counts[0]:
        pop_function()
    while pop_dispatch is not None and _modes()[1] > counts[1]:
        pop_dispatch()


def _set_trace_functions(functions: Tuple[Any, Any]) -> None:
    sys.settrace(functions[0])
    sys.setprofile(functions[1])


def _scheduling() -> Any:
    """Return the scheduling policy and the static priority of this thread."""
    reader = getattr(os, "sched_getscheduler", None)
    return None if reader is None else (reader(0), os.sched_getparam(0).sched_priority)


def _set_scheduling(value: Any) -> None:
    os.sched_setscheduler(0, value[0], os.sched_param(value[1]))


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _timers() -> Tuple[float, ...]:
    """Return the intervals of the timers whose signals interrupt this process."""
    return tuple(signal.getitimer(timer)[1] for timer in TIMERS)


def _set_timers(intervals: Tuple[float, ...]) -> None:
    for timer, interval in zip(TIMERS, intervals):
        signal.setitimer(timer, interval, interval)


def _monitoring() -> Any:
    """Return the tools of `sys.monitoring` and their events (Python 3.12)."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return ()
    tools = [(tool, monitoring.get_tool(tool)) for tool in range(6)]
    return tuple(
        (tool, name, monitoring.get_events(tool)) for tool, name in tools if name is not None
    )


def _set_monitoring(tools: Any) -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    for tool, _, _ in _monitoring():
        if tool not in {before[0] for before in tools}:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
    for tool, _, events in tools:
        monitoring.set_events(tool, events)


def _set_tracemalloc(frames: int) -> None:
    tracemalloc.stop()
    if frames:
        tracemalloc.start(frames)


def _traced_frames() -> int:
    return tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0


def _module_hooks() -> Dict[str, Tuple[Any, ...]]:
    """Return the keys of the hooks that apply to every module."""
    return {
        name: tuple(value)
        for name, value in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }


def _set_module_hooks(before: Dict[str, Tuple[Any, ...]]) -> None:
    for name, keys in before.items():
        hooks = getattr(torch.nn.modules.module, name)
        for key in [key for key in hooks if key not in keys]:
            del hooks[key]


def _saved_tensor_hooks() -> Any:
    """Return the hooks for tensors that are saved for the backward pass."""
    read = getattr(_AUTOGRAD, "_top_saved_tensors_default_hooks", None)
    return None if read is None else read(True)


def _pop_saved_tensor_hooks(before: Any) -> None:
    while _saved_tensor_hooks() != before:
        _AUTOGRAD._pop_saved_tensors_default_hooks()


_COMPILER_CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


def _compiler_settings() -> Dict[str, Any]:
    """Return the settings of compilers that differ from their defaults."""
    settings = {}
    for label in _COMPILER_CONFIGS:
        config = sys.modules.get(label)
        is_default = getattr(config, "_is_default", None)
        if is_default is not None:
            for name, entry in getattr(config, "_config", {}).items():
                if not is_default(name) and getattr(config, name) != entry.default:
                    settings["%s.%s" % (label, name)] = getattr(config, name)
    return settings


def _set_compiler_settings(before: Dict[str, Any]) -> None:
    for label in {**_compiler_settings(), **before}:
        module, _, name = label.rpartition(".")
        config = sys.modules[module]
        default = config._config[name].default
        setattr(config, name, before.get(label, default))


def _pair(name: str, holder: Any, read: str, write: str) -> List[Item]:
    """Return the item of a flag with these functions; none where torch lacks the reader."""
    reader = getattr(holder, read, None)
    return [] if reader is None else [Item(name, reader, getattr(holder, write, None))]


def _attribute(name: str, holder: Any, attribute: str) -> List[Item]:
    """Return the item of an attribute; none where torch lacks it."""
    if not hasattr(holder, attribute):
        return []
    return [
        Item(
            name,
            lambda: getattr(holder, attribute),
            lambda value: setattr(holder, attribute, value),
        )
    ]


def _of_torch() -> List[Item]:
    """Return items that only some versions of torch have."""
    einsum = getattr(torch.backends, "opt_einsum", None)
    invariants = getattr(torch.sparse, "check_sparse_tensor_invariants", None)
    items = [
        *_pair(
            "fast path of attention modules",
            getattr(torch.backends, "mha", None),
            "get_fastpath_enabled",
            "set_fastpath_enabled",
        ),
        *_attribute("optimisation of torch.einsum", einsum, "enabled"),
        *_attribute("strategy of torch.einsum", einsum, "strategy"),
        *_pair(
            "threads of the backward pass",
            torch._C,
            "_is_multithreading_enabled",
            "_set_multithreading_enabled",
        ),
        *_pair("autograd profiler", _AUTOGRAD, "_profiler_enabled", ""),
    ]
    if hasattr(invariants, "is_enabled"):
        switch: Any = invariants
        items.append(
            Item(
                "checks of sparse tensors",
                switch.is_enabled,
                lambda enabled: switch.enable() if enabled else switch.disable(),
            )
        )
    return items


def _items() -> List[Item]:
    items = [
        Item("number of threads", torch.get_num_threads, torch.set_num_threads),
        Item("number of inter-op threads", torch.get_num_interop_threads, None),
        Item("default data type", torch.get_default_dtype, torch.set_default_dtype),
        Item("default device", _default_device, _set_default_device),
        Item("gradient mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
        Item("inference mode", torch.is_inference_mode_enabled, None),
        Item("autocast", _autocast, _set_autocast),
        Item(
            "deterministic algorithms",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        Item(
            "float32 matmul precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        Item(
            "flushing of denormal numbers",
            lambda: not bool((_DENORMAL * 0.5).item()),
            torch.set_flush_denormal,
        ),
        Item("anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        Item("torch function and dispatch modes", _modes, _set_modes),
        Item("garbage collector", lambda: (gc.isenabled(), gc.get_threshold()), _set_gc_state),
        Item(
            "trace and profile functions",
            lambda: (sys.gettrace(), sys.getprofile()),
            _set_trace_functions,
        ),
        Item("CPU affinity", _affinity, _set_affinity),
        Item(
            "scheduling priority",
            lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
        ),
        Item("environment variables", _environment, _set_environment),
        Item("working directory", os.getcwd, os.chdir),
        Item("switch interval", sys.getswitchinterval, sys.setswitchinterval),
        Item("scheduling policy", _scheduling, _set_scheduling),
        Item("interval timers", _timers, _set_timers),
        Item("monitoring of Python code", _monitoring, _set_monitoring),
        Item("tracing of memory allocations", _traced_frames, _set_tracemalloc),
        Item("hooks of all modules", _module_hooks, _set_module_hooks),
        Item("hooks of saved tensors", _saved_tensor_hooks, _pop_saved_tensor_hooks),
        Item("compiler settings", _compiler_settings, _set_compiler_settings),
        *_of_torch(),
    ]
    for flag in (
        "cudnn_enabled",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "cudnn_allow_tf32",
        "cublas_allow_tf32",
        "mkldnn_deterministic",
        "mkldnn_enabled",
        "nnpack_enabled",
        "onednn_allow_tf32",
        "qengine",
        "flash_sdp_enabled",
        "mem_efficient_sdp_enabled",
        "math_sdp_enabled",
        "cublas_allow_fp16_reduced_precision_reduction",
        "cublas_allow_bf16_reduced_precision_reduction",
        "cublas_allow_fp16_accumulation",
        "cudnn_sdp_enabled",
        "overrideable_sdp_enabled",
        "fa3_sdp_enabled",
        "cpu_allow_fp16_reduced_precision_reduction",
        "math_sdp_allow_fp16_bf16_reduction",
        "deterministic_fill_uninitialized_memory",
    ):
        read = getattr(torch._C, "_get_" + flag, None)
        if read is not None:
            items.append(Item("flag " + flag, read, getattr(torch._C, "_set_" + flag, None)))
    return items


class RandomState:
    """The states of the random number generators, to be restored after a variant's calls."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._torch = torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else (numpy, numpy.random.get_state())
        self._accelerators = random_states()

    def restore(self) -> bool:
        """Restore all generators; return whether torch's CPU generator had advanced."""
        moved = not torch.equal(self._torch, torch.get_rng_state())
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            self._numpy[0].random.set_state(self._numpy[1])
        for device, state in self._accelerators:
            device.set_random_state(state)
        return moved


class ProcessState:
    """A snapshot of the process-wide state."""

    def __init__(self) -> None:
        self._values = [_read(item) for item in ITEMS]

    def changes(self) -> List[Change]:
        """Restore the state and return what was different."""
        changes = []
        for item, before in zip(ITEMS, self._values):
            after = _read(item)
            if after == before:
                continue
            restored = False
            if item.write is not None:
                try:
                    item.write(before)
                    restored = _read(item) == before
                except Exception:
                    restored = False
            changes.append(Change(_describe(item.name, before, after), restored))
        return changes


def _read(item: Item) -> Any:
    try:
        return item.read()
    except Exception as error:
        return type(error).__name__


def _describe(name: str, before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(key for key in set(before) | set(after) if before.get(key) != after.get(key))
        return name if name == "hooks of all modules" else name + " " + ", ".join(keys[:5])
    if isinstance(before, frozenset):
        before, after = sorted(before), sorted(after)
    if name in ("trace and profile functions", "hooks of saved tensors"):
        return name
    return "%s %s -> %s" % (name, str(before)[:60], str(after)[:60])


class SharedFunctions:
    """Functions that every variant and the timing depend on, by identity; those that torch replaces are ignored."""

    def __init__(self) -> None:
        self._originals: Dict[int, Tuple[str, Any, Dict[str, Any]]] = {}
        self.read_again()

    def read_again(self) -> None:
        """Replace the originals by the functions present now."""
        import builtins

        self._originals.clear()
        for label, holder in (
            ("builtins", builtins),
            ("time", time),
            ("gc", gc),
            ("torch", torch),
            ("torch.nn.functional", torch.nn.functional),
            ("torch.Tensor", torch.Tensor),
            ("torch.nn.Module", torch.nn.Module),
            ("torch.cuda", torch.cuda),
            ("torch.cuda.Event", torch.cuda.Event),
            ("torch.accelerator", getattr(torch, "accelerator", torch.cuda)),
            ("torch.optim.Optimizer", torch.optim.Optimizer),
            ("torch.autograd", torch.autograd),
        ):
            self.add(label, holder)

    def add(self, label: str, holder: Any) -> None:
        """Add the functions of a module or class, such as one that a workload uses."""
        if id(holder) not in self._originals:
            functions = {name: value for name, value in vars(holder).items() if callable(value)}
            self._originals[id(holder)] = (label, holder, functions)

    def restore(self) -> List[str]:
        """Restore functions that code outside of torch replaced; return their names."""
        replaced = []
        for label, holder, functions in self._originals.values():
            now = vars(holder)
            for name, value in functions.items():
                current = now.get(name, _MISSING)
                if current is value or (_is_in_torch(holder) and _is_of_torch(current)):
                    continue
                replaced.append("%s.%s" % (label, name))
                try:
                    setattr(holder, name, value)
                except (AttributeError, TypeError):
                    continue
        return replaced


_MISSING = object()


def _is_in_torch(holder: Any) -> bool:
    """Whether torch defines this module or class, and may replace its functions."""
    name = str(getattr(holder, "__module__", None) or getattr(holder, "__name__", ""))
    return name.partition(".")[0] in ("torch", "builtins", "time", "gc")


def _is_of_torch(value: Any) -> bool:
    """Whether a function is defined in torch or not written in Python."""
    code = getattr(value, "__code__", None)
    if code is None:
        code = getattr(getattr(value, "__func__", None), "__code__", None)
    if code is None:
        kind = type(value).__module__ or ""
        owner = str(getattr(value, "__module__", "") or "")
        return value is not _MISSING and (kind + owner).startswith(("torch", "_"))
    return str(code.co_filename).startswith(_TORCH_FOLDER)


_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
ITEMS = _items()
SHARED_FUNCTIONS = SharedFunctions()

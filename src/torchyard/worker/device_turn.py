"""Turns on an accelerator: this worker does not use it while a cell of another process is timed.

Cells of a sweep that prepare on other cores than the timed one may go on as long as they use the CPU only.
Two kinds of locked files in a shared folder tell when that is:

gate.lock         held exclusively by the cell that is timed
device/PID.lock   held by the worker PID while it uses the device

The controller names the folder in each request of a cell that is not timed. A worker holds its own file
during such a request, except while Dynamo and Inductor trace, generate code and compile. It locks the file
only while it holds the gate shared: no worker begins to use the device while a cell is timed. One that
uses the device already is paused by its controller. The kernel releases the locks when a process ends.

Standard library only; torch is imported where a compilation starts.
"""

import contextlib
import fcntl
import os
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple

GATE = "gate.lock"
USERS = "device"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def user_file(folder: str, pid: int) -> str:
    """Return the file that the worker `pid` locks while it uses the device."""
    return os.path.join(folder, USERS, "%d.lock" % pid)


class DeviceTurn:
    """The turns of this process. Without a folder it never waits."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._folder = ""
        self._owner = 0
        self._gate = self._own = -1
        self._synchronize: Optional[Callable[[], None]] = None
        self._asked = False
        self._compiling = self._needed = self._queries = 0
        self._waits: List[Tuple[float, float]] = []

    def begin(self, folder: str) -> None:
        """Begin a request; `folder` is empty if the process may use the device at any time."""
        with self._lock:
            if folder and folder != self._folder:
                self._open(folder)
            self._asked = bool(folder)
            self._update()

    def end(self) -> List[Tuple[float, float]]:
        """End the request; return the starts and ends of its waits, by the monotonic clock."""
        with self._lock:
            self._asked = False
            self._update()
            waits, self._waits = self._waits, []
            return waits

    def use_device(self, synchronize: Callable[[], None]) -> None:
        """Wait until the device may be used; from now on, all requests use it."""
        with self._lock:
            self._synchronize = synchronize
            self._update()

    @property
    def is_shared(self) -> bool:
        """Whether the current request takes turns on a device."""
        return self._asked and self._synchronize is not None

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Leave the device to others inside the block, except where `needing_device` is entered."""
        self._count("_compiling", 1)
        try:
            yield
        finally:
            self._count("_compiling", -1)

    @contextlib.contextmanager
    def needing_device(self) -> Iterator[None]:
        """Use the device inside the block, also during a compilation."""
        self._count("_needed", 1)
        try:
            yield
        finally:
            self._count("_needed", -1)

    @contextlib.contextmanager
    def querying_devices(self) -> Iterator[None]:
        """Use the device inside the block, also before it is known whether the workload does."""
        self._count("_queries", 1)
        try:
            yield
        finally:
            self._count("_queries", -1)

    def _count(self, name: str, step: int) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + step)
            self._update()

    def _open(self, folder: str) -> None:
        os.makedirs(os.path.join(folder, USERS), exist_ok=True)
        if self._gate >= 0:
            os.close(self._gate)
        self._gate = os.open(os.path.join(folder, GATE), _FLAGS, 0o666)
        self._folder = folder
        self._owner = os.getpid()

    def _update(self) -> None:
        if (
            os.getpid() != self._owner
        ):  # nothing to do, or a fork, which shares the locks of its parent
            return
        uses = self.is_shared and (not self._compiling or self._needed > 0)
        uses = uses or (self._asked and self._queries > 0)
        if uses and self._own < 0:
            self._pass_gate()
        elif not uses and self._own >= 0:
            if self._synchronize is not None:
                self._synchronize()
            fcntl.flock(self._own, fcntl.LOCK_UN)  # also in forked children
            os.close(self._own)
            self._own = -1

    def _pass_gate(self) -> None:
        try:
            fcntl.flock(self._gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            began_s = time.monotonic()
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            self._waits.append((began_s, time.monotonic()))
        # Opened here: the holder of the gate removes files that nobody has locked.
        self._own = os.open(user_file(self._folder, os.getpid()), _FLAGS, 0o666)
        fcntl.flock(self._own, fcntl.LOCK_EX)
        fcntl.flock(self._gate, fcntl.LOCK_UN)


TURN = DeviceTurn()


@contextlib.contextmanager
def compilations_apart(turn: DeviceTurn, *, known: bool) -> Iterator[None]:
    """Leave the device to others while torch compiles inside the block.

    Only if the compiler is `known` to use no device except where the hooks see it. The part of the first
    call that runs the compiled code uses the device.
    """
    if not (known and turn.is_shared and _has_hooks(turn)):
        yield
        return
    from torch._dynamo import callback

    open_regions: List[Any] = []
    runtime = ("TRITON_AUTOTUNING", "CUDAGRAPH_RECORDING")

    def start(arguments: Any) -> None:
        if arguments.callback_trigger.name not in runtime:
            region = turn.compiling()
            region.__enter__()
            open_regions.append(region)

    def end(_arguments: Any) -> None:
        if open_regions:
            open_regions.pop().__exit__(None, None, None)

    handler = callback.callback_handler
    handler.start_callbacks.append(start)
    handler.end_callbacks.append(end)
    try:
        yield
    finally:
        # `torch._dynamo.reset` removes them, too.
        for callbacks, own in ((handler.start_callbacks, start), (handler.end_callbacks, end)):
            if own in callbacks:
                callbacks.remove(own)
        while open_regions:
            open_regions.pop().__exit__(None, None, None)


_hooked: Optional[bool] = None


def _has_hooks(turn: DeviceTurn) -> bool:
    """Return whether this torch shows when it compiles and when a compilation uses the device."""
    global _hooked  # the hooks stay for the life of the process
    if _hooked is None:
        try:
            _hooked = _install(turn)
        except (ImportError, AttributeError):
            _hooked = False
    return _hooked and not _uses_hidden_device()


def _uses_hidden_device() -> bool:
    """Return whether Inductor's settings make a compilation use the device where no hook sees it."""
    from torch._inductor import config

    names = [
        *("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "autotune_in_subproc"),
        *("benchmark_kernel", "benchmark_fusion", "profile_bandwidth"),
    ]
    return any(bool(getattr(config, name, False)) for name in names)


def _install(turn: DeviceTurn) -> bool:
    """Take a turn wherever Inductor runs, benchmarks or loads kernels during a compilation."""
    from torch._dynamo import callback
    from torch._inductor import constant_folding
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime import benchmarking

    if not hasattr(callback, "CallbackTrigger"):  # torch before 2.8
        return False
    places: List[Tuple[Any, str]] = [(constant_folding.ConstantFolder, "run")]
    pad = [name for name in ("_should_pad_bench", "_should_pad") if hasattr(pad_mm, name)]
    if not pad:
        return False
    places.append((pad_mm, pad[0]))
    classes = [benchmarking.Benchmarker]
    for one in classes:
        classes += one.__subclasses__()
    methods = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")
    places += [(one, name) for one in classes for name in methods if name in vars(one)]
    try:
        import triton  # noqa: F401
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    except ImportError:
        pass  # without Triton there are no kernels to load
    else:
        if not hasattr(CachingAutotuner, "_make_launchers"):
            return False
        places.append((CachingAutotuner, "_make_launchers"))
    for owner, name in places:
        setattr(owner, name, _with_device(turn, getattr(owner, name)))
    return True


def _with_device(turn: DeviceTurn, function: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with turn.needing_device():
            return function(*args, **kwargs)

    return call

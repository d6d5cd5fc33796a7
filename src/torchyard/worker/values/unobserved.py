"""What the dispatch mode cannot observe: other threads, memory access past it, calls of torch.compile.

Other threads get a mode that reads no values: it counts operators and marks tracked memory, so that nothing is
concluded from an outdated observation. Memory that numpy, addresses, storages, files or extensions can access is
rescanned each time, and a fill of it is never reported as dead; this includes torch's own Python code (`torch.save`).
Compiled functions run as generated kernels, which `compiled` observes; --eager profiles without them.
"""

import functools
import mmap
import os
import sys
import threading
from multiprocessing import process as processes
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.observation import Storages, StorageState, storage_key
from torchyard.worker.values.operators import tensors_in
from torchyard.worker.values.redispatch import TransparentMode
from torchyard.worker.values.surveys.follower import is_follower

_installed: List["ForkHooks"] = []
_registered: List[bool] = []


class ForkHooks:
    """Callbacks after a fork, in the parent and in the child, until `remove`."""

    def __init__(self, in_parent: Callable[[], None], in_child: Callable[[], None]) -> None:
        self.in_parent = in_parent
        self.in_child = in_child
        _installed.append(self)
        if not _registered:
            _registered.append(True)
            os.register_at_fork(after_in_parent=_after_in_parent, after_in_child=_after_in_child)

    def remove(self) -> None:
        """Disable the callbacks; a second call does nothing."""
        if self in _installed:
            _installed.remove(self)


def _after_in_parent() -> None:
    for hooks in _installed[:]:
        hooks.in_parent()


def _after_in_child() -> None:
    for hooks in _installed[:]:
        hooks.in_child()


_BOOTSTRAP = "_bootstrap_inner"
"""First method of every `threading` thread, whatever its class; in CPython since 3.0."""
_LOADER = "torch.utils.data"
_MOST_NAMES = 3


class ThreadCount(TransparentMode):
    """Dispatch mode that counts the operators of one thread."""

    def __init__(self, name: str, storages: Storages) -> None:
        super().__init__()
        self.name = name
        self.operators = 0
        self.off = False
        self._storages = storages

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """Count one operator."""
        keywords = kwargs or {}
        if not self.off:
            self.operators += 1
            for tensor in tensors_in(args) + tensors_in(keywords.values()):
                # Only set a flag: the profiled thread may be iterating over the states.
                state = _tracked(self._storages, tensor)
                if state is not None:
                    state.outside = True
        return func(*args, **keywords)


class OtherThreads:
    """Counts operators of other threads and starts of processes, until removed."""

    def __init__(self, storages: Storages, on_fork: Callable[[], None]) -> None:
        self._storages = storages
        self._threads: List[ThreadCount] = []
        self._starting: List[bool] = []
        self._on = True
        here = threading.current_thread()
        self.before = sum(thread is not here for thread in threading.enumerate())
        """Threads that were running when profiling started: they cannot get a mode."""
        self.forks = 0
        self.children = 0
        self.loaders = 0
        self._bootstrap = getattr(threading.Thread, _BOOTSTRAP, None)
        self._start = processes.BaseProcess.start
        if self._bootstrap is not None:
            setattr(threading.Thread, _BOOTSTRAP, self._wrapped_bootstrap())
        processes.BaseProcess.start = self._wrapped_start()  # type: ignore[method-assign]
        self._fork_hooks = ForkHooks(self._forked, on_fork)

    def remove(self) -> None:
        """Restore Python; running threads stop counting."""
        if not self._on:
            return
        self._on = False
        self._fork_hooks.remove()
        for thread in self._threads:
            thread.off = True
        if self._bootstrap is not None:
            setattr(threading.Thread, _BOOTSTRAP, self._bootstrap)
        processes.BaseProcess.start = self._start  # type: ignore[method-assign]

    @property
    def busy(self) -> List[ThreadCount]:
        """Threads that ran operators."""
        return [thread for thread in self._threads if thread.operators]

    def counts(self) -> Dict[str, int]:
        """Return the counters that are not zero."""
        counts = {
            "other_threads": len(self.busy),
            "other_thread_operators": sum(thread.operators for thread in self.busy),
            "loader_processes": self.loaders,
            "child_processes": self.children + self.forks,
        }
        return {name: count for name, count in counts.items() if count}

    def notes(self, *, processes: bool = True) -> List[str]:
        """Return notes for the report, with or without those about processes."""
        notes: List[str] = []
        if self.busy:
            different = list(dict.fromkeys(thread.name for thread in self.busy))
            names = ", ".join(different[:_MOST_NAMES])
            more = " and others" if len(different) > _MOST_NAMES else ""
            notes.append(
                "operators of other threads were not profiled: %s (%s%s) ran %s"
                % (
                    _counted(len(self.busy), "thread"),
                    names,
                    more,
                    _counted(sum(thread.operators for thread in self.busy), "operator"),
                )
            )
        if self.before:
            notes.append(
                "%s started before profiling: whether operators run there is unknown"
                % _counted(self.before, "other thread")
            )
        if self.loaders and processes:
            notes.append(
                "%s of data loaders ran, whose operators were not profiled; "
                "num_workers=0 runs them in this process"
                % _counted(self.loaders, "worker process", "worker processes")
            )
        if self.children + self.forks and processes:
            notes.append(
                "the program started %s, whose operators were not profiled"
                % _counted(self.children + self.forks, "process", "processes")
            )
        return notes

    def _wrapped_bootstrap(self) -> Any:
        bootstrap = self._bootstrap

        def counted(thread: threading.Thread) -> None:
            count = ThreadCount(thread.name, self._storages)
            count.off = not self._on
            self._threads.append(count)
            with count:
                bootstrap(thread)  # type: ignore[misc]

        return counted

    def _wrapped_start(self) -> Any:
        start = self._start

        def counted(process: Any) -> None:
            target = getattr(process, "_target", None)
            if str(getattr(target, "__module__", "")).startswith(_LOADER):
                self.loaders += 1
            else:
                self.children += 1
            self._starting.append(True)
            try:
                start(process)
            finally:
                self._starting.pop()

        return counted

    def _forked(self) -> None:
        if not self._starting:
            self.forks += 1


def _tracked(storages: Storages, tensor: torch.Tensor) -> Optional[StorageState]:
    """Return the tracked state of a tensor's memory, if any."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    return storages._states.get(storage_key(tensor))


def _counted(number: int, word: str, words: str = "") -> str:
    return "%s %s" % (format(number, ","), word if number == 1 else words or word + "s")


SHARING_METHODS = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "__dlpack__",
    "share_memory_",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "__reduce_ex__",
    "apply_",
    "map_",
    "map2_",
)
"""Tensor methods that give other code access to the memory, mostly a lasting one."""
SHARING_PROPERTIES = ("__cuda_array_interface__",)
"""Tensor properties with the same effect."""
READING_METHODS = ("tolist",)
"""Tensor methods that read the memory once."""
IMPORTING_FUNCTIONS = (
    "from_numpy",
    "frombuffer",
    "as_tensor",
    "asarray",
    "from_dlpack",
    "from_file",
)
"""Functions whose result may share external memory."""
THROUGH_THE_DISPATCHER = frozenset({"torchvision", "torchaudio"})
"""Packages whose compiled libraries only define operators."""
_LINKED = (b"libc10.so", b"libtorch_cpu.so", b"libtorch_python.so")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_WORKER_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMPILER_FOLDERS = tuple(
    _TORCH + name + os.sep for name in ("_dynamo", "_functorch", "_inductor", "_subclasses")
)
"""The compiler asks for storages and addresses to describe its inputs, and to launch kernels, which are observed."""


class UntrackedAccess:
    """Tracks access that bypasses the dispatcher, until removed."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self.handed_out: Dict[str, int] = {}
        """Number of calls by method name."""
        self._replaced: List[Tuple[Any, str, Any]] = []
        for name in SHARING_METHODS:
            self._replace(torch.Tensor, name, self._kept)
        for name in READING_METHODS:
            self._replace(torch.Tensor, name, self._read)
        for name in SHARING_PROPERTIES:
            self._replace_property(torch.Tensor, name)
        for owner in (torch, torch.utils.dlpack):
            self._replace(owner, "to_dlpack", self._kept)
        for name in IMPORTING_FUNCTIONS:
            self._replace(torch, name, None)

    def remove(self) -> None:
        """Restore torch."""
        for owner, name, own in reversed(self._replaced):
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced.clear()

    def notes(self) -> List[str]:
        """Return notes for the report."""
        if not self.handed_out:
            return []
        calls = ", ".join(
            "%s %s" % (name, "once" if count == 1 else "%d times" % count)
            for name, count in sorted(self.handed_out.items())
        )
        return ["tensors were passed to code that is not observed: " + calls]

    def _replace(self, owner: Any, name: str, note: Optional[Callable[[Any], None]]) -> None:
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if note is not None:
                if args and not _called_without_access():
                    for one in args:
                        note(one)
                    self._count(name)
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            self._kept(result)
            return result

        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, noted)

    def _replace_property(self, owner: Any, name: str) -> None:
        own = vars(owner).get(name)
        if not isinstance(own, property) or own.fget is None:
            return
        get = own.fget

        def noted(tensor: Any) -> Any:
            self._kept(tensor)
            self._count(name)
            return get(tensor)

        self._replaced.append((owner, name, own))
        setattr(owner, name, property(noted))

    def _count(self, name: str) -> None:
        """Count a call for the report; calls from torch's own code are not reported."""
        if name not in READING_METHODS and not sys._getframe(2).f_code.co_filename.startswith(
            _TORCH
        ):
            self.handed_out[name] = self.handed_out.get(name, 0) + 1

    def _kept(self, tensor: Any) -> None:
        if _plain(tensor):
            self._storages.of(tensor, 0).escape()

    def _read(self, tensor: Any) -> None:
        if _plain(tensor):
            state = self._storages.of(tensor, 0)
            state.reads += 1
            state.uses += 1


def untracked_libraries() -> List[str]:
    """Return loaded libraries that use torch's C++ API and may access any memory."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(None, 5)[5].strip() for line in file if ".so" in line}
    except (OSError, IndexError):
        return []
    libraries = []
    for path in sorted(paths):
        folder = os.path.basename(os.path.dirname(path))
        if path.startswith(_TORCH) or folder in THROUGH_THE_DISPATCHER or is_follower(path):
            continue
        if _is_linked_with_torch(path):
            libraries.append(os.path.basename(path))
    return libraries


@functools.lru_cache(maxsize=None)
def _is_linked_with_torch(path: str) -> bool:
    """Return whether a library links to torch; cached, because CUDA libraries take 3.5 s to read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return any(text.find(name) >= 0 for name in _LINKED)
    except (OSError, ValueError):
        return False


def _called_without_access() -> bool:
    """Return whether the caller is the worker itself, which has no side effects, or the compiler."""
    return sys._getframe(2).f_code.co_filename.startswith((_WORKER_FOLDER, *_COMPILER_FOLDERS))


def _plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type not in ("meta", "mkldnn")
    )


class CompileCalls:
    """Notices calls of torch.compile, until removed."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self.compiled = False
        """Whether torch.compile was called. The program can switch compilation on and off at any time,
        so a variable or setting that disables it proves nothing."""
        self.compiled_while_enabled = False
        """Whether torch.compile was called and no variable disabled it."""
        self._compile = getattr(torch, "compile", None)
        if self._compile is not None:
            torch.compile = self._noted

    def remove(self) -> None:
        """Restore torch."""
        if self._compile is not None:
            torch.compile = self._compile

    def _noted(self, *args: Any, **kwargs: Any) -> Any:
        if not self.compiled:
            self.compiled = True
            self._on_first()
        if os.environ.get("TORCHDYNAMO_DISABLE") != "1":
            self.compiled_while_enabled = True
        return self._compile(*args, **kwargs) if self._compile is not None else None

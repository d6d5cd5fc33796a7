"""Operators that run where the watch is not: in other threads, and in processes of the program.

A dispatch mode belongs to one thread. Other threads get one of their own that looks at no values: it
counts, and it marks memory that the watch knows, so that nothing is concluded from what the watch saw
of it last. Of other processes it is only known that they were started.
"""

import os
import threading
import weakref
from multiprocessing import process as processes
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.values.operators import tensors_in
from torchyard.worker.values.storages import Storages, StorageState, storage_key

_BOOTSTRAP = "_bootstrap_inner"
"""What every thread of `threading` runs first, whatever its class; CPython has it since 3.0."""
_LOADER = "torch.utils.data"
_MOST_NAMES = 3


class ThreadCount(TorchDispatchMode):
    """Counts operators of one thread."""

    def __init__(self, name: str, storages: Storages) -> None:
        super().__init__()
        self.name = name
        self.operators = 0
        self.off = False
        self._storages = storages

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled functions run compiled, as in the thread that is watched."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """One operator."""
        keywords = kwargs or {}
        if not self.off:
            self.operators += 1
            for tensor in tensors_in(args) + tensors_in(keywords.values()):
                # Only marks: the watch may be walking over its books in this moment.
                state = _known(self._storages, tensor)
                if state is not None:
                    state.outside = True
        return func(*args, **keywords)


class Elsewhere:
    """Counts what is not watched, until removed."""

    def __init__(self, storages: Storages, on_fork: Callable[[], None]) -> None:
        self._storages = storages
        self._on_fork = on_fork
        self._threads: List[ThreadCount] = []
        self._starting: List[bool] = []
        self._on = True
        self.before = _threads_beside_this()
        """Threads that were running when the watch began: nothing can be put into them."""
        self.forks = 0
        self.children = 0
        self.loaders = 0
        self._bootstrap = getattr(threading.Thread, _BOOTSTRAP, None)
        self._start = processes.BaseProcess.start
        if self._bootstrap is not None:
            setattr(threading.Thread, _BOOTSTRAP, self._wrapped_bootstrap())
        processes.BaseProcess.start = self._wrapped_start()  # type: ignore[method-assign]
        _tell_of_forks(self)

    def remove(self) -> None:
        """Leave Python as it was; threads that run on count no more."""
        if not self._on:
            return
        self._on = False
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
        """For the report; only what there is."""
        found = {
            "other_threads": len(self.busy),
            "other_thread_operators": sum(thread.operators for thread in self.busy),
            "loader_processes": self.loaders,
            "child_processes": self.children + self.forks,
        }
        return {name: count for name, count in found.items() if count}

    def notes(self) -> List[str]:
        """What the user should know of it."""
        said: List[str] = []
        if self.busy:
            different = list(dict.fromkeys(thread.name for thread in self.busy))
            names = ", ".join(different[:_MOST_NAMES])
            more = " and others" if len(different) > _MOST_NAMES else ""
            said.append(
                "operators of other threads were not looked at: %s (%s%s) ran %s"
                % (
                    _counted(len(self.busy), "thread"),
                    names,
                    more,
                    _counted(sum(thread.operators for thread in self.busy), "operator"),
                )
            )
        if self.before:
            said.append(
                "%s ran before the watch began: whether operators run in them is not known"
                % _counted(self.before, "other thread")
            )
        if self.loaders:
            said.append(
                "%s of data loaders ran: what operators do there was not looked at; "
                "num_workers=0 has them run in this process"
                % _counted(self.loaders, "worker process", "worker processes")
            )
        if self.children + self.forks:
            said.append(
                "the program started %s of Python: what operators do there was not looked at"
                % _counted(self.children + self.forks, "process", "processes")
            )
        return said

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

    def forked(self) -> None:
        """The program forked, and this is the parent."""
        if self._on and not self._starting:
            self.forks += 1

    def in_child(self) -> None:
        """The program forked, and this is the child."""
        if self._on:
            self._on_fork()


_told_of_forks: "weakref.WeakSet[Elsewhere]" = weakref.WeakSet()
_registered: List[bool] = []


def _tell_of_forks(one: Elsewhere) -> None:
    """Python never forgets what is to be called at a fork: it must not keep a whole profile alive."""
    _told_of_forks.add(one)
    if not _registered:
        _registered.append(True)
        os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)


def _in_parent() -> None:
    for told in list(_told_of_forks):
        told.forked()


def _in_child() -> None:
    for told in list(_told_of_forks):
        told.in_child()


def _known(storages: Storages, tensor: torch.Tensor) -> Optional[StorageState]:
    """What the watch knows of a tensor's memory, if anything."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    return storages._states.get(storage_key(tensor))


def _threads_beside_this() -> int:
    """Threads of Python that are alive now, but for this one."""
    here = threading.current_thread()
    return sum(thread is not here for thread in threading.enumerate())


def _counted(number: int, word: str, words: str = "") -> str:
    return "%s %s" % (format(number, ","), word if number == 1 else words or word + "s")

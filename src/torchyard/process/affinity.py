"""CPU affinity of process trees. Linux keeps it per thread; new threads and processes inherit it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def confined(cores: Collection[int]) -> Iterator[None]:
    """Confine this thread, and everything that it starts in the block, to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move_processes(processes: Callable[[], Collection[int]], cores: Collection[int]) -> None:
    """Move all threads of the processes to these CPUs.

    `processes` is called again until there are no new threads: one that was not moved yet may start others.
    """
    moved: set[int] = set()
    while new := {thread for pid in processes() for thread in _threads(pid)} - moved:
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        moved |= new


def _threads(pid: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # it has ended
        return []

"""The workers that are alive in this yard, so that none outlives it when it ends in any usual way.

Knows of a worker only that it can be killed.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from typing import Protocol

__all__ = ["forget", "kill_all", "remember"]


class Killable(Protocol):
    """A worker, as far as this module is concerned."""

    def kill(self) -> None:
        """End it with everything it started."""


_lock = threading.Lock()
_live: dict[Killable, int] = {}
"""Each worker with the pid of the yard that started it: a fork of the yard must not end them."""


def remember(worker: Killable) -> None:
    """From now on the worker is killed when the yard exits."""
    with _lock:
        _live[worker] = os.getpid()


def forget(worker: Killable) -> None:
    """The worker is gone."""
    with _lock:
        _live.pop(worker, None)


def kill_all() -> None:
    """Kill every worker this process started."""
    with _lock:
        ours = [worker for worker, owner in _live.items() if owner == os.getpid()]
    for worker in ours:
        with suppress(Exception):  # one that cannot be ended must not save the others
            worker.kill()


atexit.register(kill_all)

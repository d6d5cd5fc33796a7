"""Exclude other tests while one compares, in sessions of pytest-xdist.

Every test holds `machine` while it runs: shared, or exclusively if it compares. A test that waits for
the machine holds `wanted`, so that no other test starts before it. The kernel releases the locks of a
worker that crashes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

__all__ = ["TimingLock"]


class TimingLock:
    """A plugin of one worker of pytest-xdist."""

    def __init__(self, folder: str, *, needs_machine: Callable[[pytest.Item], bool]) -> None:
        """`needs_machine` says which tests need the machine for themselves."""
        self._needs_machine = needs_machine
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)  # a worker on another host has none
        self._machine = (place / "machine.lock").open("w")
        self._wanted = (place / "wanted.lock").open("w")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Hold the machine during the test; tryfirst, because waiting is no part of its time limit."""
        mode = fcntl.LOCK_EX if self._needs_machine(item) else fcntl.LOCK_SH
        fcntl.flock(self._wanted, fcntl.LOCK_EX)
        fcntl.flock(self._machine, mode)
        fcntl.flock(self._wanted, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        """Close the files."""
        self._machine.close()
        self._wanted.close()

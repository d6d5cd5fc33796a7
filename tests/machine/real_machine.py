"""Helpers for tests that change settings of this machine: one at a time, and only as root."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard.machine.quieting.journal import JOURNAL_FILE, JOURNAL_VARIABLE, JournalLock

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the machine")


@contextmanager
def alone_on_machine() -> Iterator[None]:
    """Two that change the same setting would put back each other's values: tests, and real tunes."""
    with (Path(tempfile.gettempdir()) / "torchyard-real-machine.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        usual = Path("/var/lib/torchyard/machine")
        lock = JournalLock.take(usual, wait_s=120.0) if usual.exists() else None
        if usual.exists() and lock is None:
            pytest.skip("this machine is being tuned")
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


@contextmanager
def quieted_by_another(
    folder: Path, request: str, *, knobs: str, after: int = 10**6
) -> Iterator[int]:
    """A process that tunes this machine and then waits; kills itself (-9) after so many writes.

    `request` and `knobs` are expressions. Yields its number, when it is tuned or gone.
    """
    program = f"""
        import os, signal, sys, time
        from torchyard.machine.model import QuietRequest
        from torchyard.machine.system.file_tree import FileTree
        from torchyard.machine.knob import Machine
        from torchyard.machine.knobs import KNOBS
        from torchyard.machine.knobs.cores import Isolation
        from torchyard.machine.quieting.apply_settings import QuietSession

        class Mortal(FileTree):
            writes = 0

            def write(self, path, value):
                super().write(path, value)
                Mortal.writes += 1
                if Mortal.writes >= {after}:
                    os.kill(os.getpid(), signal.SIGKILL)

        machine = Machine(files=Mortal())
        with QuietSession(machine, {request}, knobs={knobs}) as session:
            for change in session.applied.refused:
                print("refused", change.setting.place, change.reason)
            print("tuned", flush=True)
            sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, JOURNAL_VARIABLE: str(folder)},
    )
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        messages = []
        for line in process.stdout:
            messages.append(line)
            if line == "tuned\n":
                break
        if after == 10**6:
            assert messages == ["tuned\n"], messages
        else:
            assert process.wait(30) == -signal.SIGKILL
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def wait_until_restored(folder: Path, limit_s: float = 60.0) -> None:
    """Wait until the restore process has restored everything and removed the journal."""
    wait_until(lambda: not (folder / JOURNAL_FILE).exists(), limit_s)


def wait_until(condition: object, limit_s: float = 20.0) -> None:
    """Look again and again; fails when the time is up."""
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)

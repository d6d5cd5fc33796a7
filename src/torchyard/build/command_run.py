"""Runs one command of a step: output to the step's log, nothing left behind.

Every process carries the marks by which a later start finds and ends what a killed one left. Knows
nothing of plans.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from torchyard.errors import MissingTool, StepFailed
from torchyard.process.markers import (
    LAUNCH_VARIABLE,
    YARD_VARIABLE,
    kill_launch,
    new_launch_mark,
    yard_mark,
)
from torchyard.process.starter import start_in_lasting_thread
from torchyard.process.tree import kill_tree

__all__ = ["CommandRun"]

_CHUNK_BYTES: Final = 1 << 16


class CommandRun:
    """One running command; `stop` may be called from another thread."""

    def __init__(self, argv: list[str], *, folder: str, environment: Mapping[str, str]) -> None:
        self._mark = new_launch_mark()
        self._stopped = threading.Event()
        marked = {**environment, LAUNCH_VARIABLE: self._mark, YARD_VARIABLE: yard_mark()}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                cwd=folder or None,
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        try:
            self._process = start_in_lasting_thread(start)
        except FileNotFoundError as error:
            missing = folder if folder and not Path(folder).is_dir() else argv[0]
            raise MissingTool(
                f"{missing} is not there", why=f"it was needed for: {' '.join(argv)}"
            ) from error
        except PermissionError as error:
            raise StepFailed(f"{argv[0]} cannot be started", why=str(error)) from error

    def wait(self, log: BinaryIO, heard: Callable[[bytes], None]) -> int:
        """Copy the output to the log as it comes, and return the exit code."""
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101  # Popen was asked for it
        try:
            while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
                log.write(chunk)
                log.flush()
                heard(chunk)
        except BaseException:  # a full disk under the log, or a mistake of whoever listens
            self.stop()
            self._process.wait()
            raise
        finally:
            pipe.close()
        code = self._process.wait()
        # What the command left running in the background must not outlive its step. Only the mark
        # tells it now: the process is reaped, and its number may belong to somebody else.
        kill_launch(self._mark)
        return code

    @property
    def stopped(self) -> bool:
        """Whether `stop` ended it."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the command and everything it started."""
        self._stopped.set()
        with suppress(OSError):
            if self._process.poll() is None:
                kill_tree(self._process.pid, self._mark)
            else:
                kill_launch(self._mark)

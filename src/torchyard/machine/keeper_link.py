"""The owner's side of the keeper: starts it, has it hold settings, tells it how the tune ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torchyard
from torchyard.core.machine import Setting
from torchyard.core.machine_change import SettingChange
from torchyard.core.records import decode, encode
from torchyard.errors import StepFailed
from torchyard.machine.journal_lock import JournalLock
from torchyard.results.owner import owner_of

__all__ = ["KeeperLink"]

_START_S: Final = 60.0
_ANSWER_S: Final = 30.0
_END_S: Final = 5.0


class KeeperLink:
    """A keeper that waits for the end of this process."""

    def __init__(self, *, root: Path, folder: Path, lock: JournalLock) -> None:
        """Start it and wait until it could restore; nothing may be written before."""
        # -P: this may run as root in anybody's folder, which must not be searched for modules.
        words = [sys.executable, "-P", "-m", "torchyard.machine.keeper"]
        own = str(Path(torchyard.__file__).resolve().parents[1])
        paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [*words, str(root), str(folder), str(lock.descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock.descriptor,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError as error:
            raise _no_keeper(str(error)) from error
        self._unread = b""
        self._answer(_START_S)

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._process.pid

    def hold(self, settings: Sequence[Setting]) -> list[SettingChange]:
        """Have it write settings that last as long as a process, so that they outlive this one."""
        self._tell({"say": "hold", "settings": [encode(setting) for setting in settings]})
        results = self._answer(_ANSWER_S)["results"]
        return [decode(SettingChange, item, where="keeper") for item in results]

    def stay(self) -> dict[str, object]:
        """Leave it behind with what it holds; what identifies it."""
        owner = owner_of(self._process.pid)
        self._tell({"say": "stay"})
        self._answer(_ANSWER_S)  # from here on others can restore
        self._close_pipes()
        # It is to outlive this process: nobody will wait for it, and Popen must not complain.
        self._process.returncode = 0
        return owner

    def done(self) -> None:
        """Everything is put back, or noted as not: it may go. A second call does nothing."""
        if self._process.returncode is not None:
            return
        with suppress(OSError):
            self._tell({"say": "done"})
        self._close_pipes()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave_it(self) -> None:
        """End without a word: it restores in place of this process."""
        self._close_pipes()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ANSWER_S)

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101  # a pipe was asked for
        self._process.stdin.write((json.dumps(message) + "\n").encode())
        self._process.stdin.flush()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  # a pipe was asked for
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], limit_s)
            piece = os.read(descriptor, 1 << 16) if ready else b""
            if not piece:
                self._process.kill()
                self._close_pipes()
                self._process.wait()
                raise _no_keeper(f"it does not answer within {limit_s:g} s" if not ready else "")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _no_keeper(why: str) -> StepFailed:
    return StepFailed(
        "the process that restores after a kill cannot be started",
        why=why or "it ended at once",
        hint="nothing was changed; see whether `python -m torchyard.machine.keeper` starts",
    )

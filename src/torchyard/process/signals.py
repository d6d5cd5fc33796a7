"""Raise SIGTERM and SIGHUP as an exception, like Ctrl-C, and defer all three during writes.

Schedulers, systemd and CI end a program with SIGTERM, a lost terminal with SIGHUP. Both raise
`EndedBySignal`, a KeyboardInterrupt: whatever handles Ctrl-C handles them. Only the main thread can
do this; elsewhere these do nothing. Signals that the user has ignored (`nohup`) stay ignored.
"""

from __future__ import annotations

import errno
import os
import signal
import termios
import threading
from types import FrameType
from typing import Any, Final, Self

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_ALL: Final = (signal.SIGINT, *_ENDING)
_received: list[int] = []


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def ending_signal() -> int | None:
    """Return the first SIGTERM or SIGHUP that this process received and raised, or None."""
    return _received[0] if _received else None


class _Handlers:
    """Signal handlers that are installed temporarily."""

    def __init__(self, numbers: tuple[signal.Signals, ...]) -> None:
        self._numbers = numbers
        self._before: dict[signal.Signals, Any] = {}

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:
                self._before[number] = before
                signal.signal(number, self._handle)

    def _remove(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class DeferredSignals(_Handlers):
    """Context manager that defers signals: the first one is delivered at the end of the block."""

    def __init__(self) -> None:
        super().__init__(_ALL)
        self.caught: list[int] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.caught.append(number)

    def __enter__(self) -> Self:
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        if self.caught:
            signal.raise_signal(self.caught[0])


class SignalsRaise(_Handlers):
    """Raise SIGTERM and SIGHUP as exceptions, like Ctrl-C, between `start` and `stop`.

    Only the first one raises: senders repeat them, and a second one would abort the clean-up that
    the first one started. Ctrl-C and SIGKILL still end a clean-up that hangs.
    """

    def __init__(self) -> None:
        super().__init__(_ENDING)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if number == signal.SIGHUP:
            _leave_lost_terminal()
        if _received:
            return
        _received.append(number)
        raise EndedBySignal(number)

    def start(self) -> None:
        """Install the handlers."""
        outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if not isinstance(outer, SignalsRaise):
            _received.clear()
        self._install()

    def stop(self) -> None:
        """Restore the previous handlers."""
        self._remove()


def _leave_lost_terminal() -> None:
    """Redirect output away from a lost terminal: every write would fail and hide the error."""
    for stream in (0, 1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                devnull = os.open(os.devnull, os.O_RDWR)
                os.dup2(devnull, stream)
                os.close(devnull)

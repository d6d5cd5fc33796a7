"""Signals that end a program wait while settings are written, and become an exception between.

Only the main thread can do this; elsewhere these do nothing. Signals that the user has switched off
(`nohup`) stay off.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final, Self

__all__ = ["DeferredSignals", "EndedBySignal", "SignalsRaise"]

_ALL: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(KeyboardInterrupt):
    """The program is asked to end, and not by Ctrl-C."""


class _Handlers:
    """Puts a handler in place of others for a while."""

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
    """In the block signals are only remembered; after it, the first one is delivered."""

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
    """Between `start` and `stop`, SIGTERM and SIGHUP raise as Ctrl-C does, so that blocks unwind."""

    def __init__(self) -> None:
        super().__init__((signal.SIGTERM, signal.SIGHUP))

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        raise EndedBySignal(f"ended by {signal.Signals(number).name}")

    def start(self) -> None:
        """From here on they raise."""
        self._install()

    def stop(self) -> None:
        """As before."""
        self._remove()

"""Permission to start the next launch of a session.

A session calls its gate before each launch. The gate of `torchyard bench` is always open. A cell of
a sweep waits at its gate for the driver, which chooses the order of launches over all cells. A
waiting cell has no worker process, and the wait counts neither as measuring time nor as progress.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from torchyard.core.comparison import Comparison

_STOP_SIGNAL: Final = signal.SIGUSR1


class LaunchStopped(KeyboardInterrupt):
    """The launch in progress was stopped; the session ends with its finished launches."""


@dataclass(frozen=True, kw_only=True)
class ProvisionalResults:
    """Results of a session between two launches."""

    launches: int
    """Launches that were measured."""
    undecided: tuple[str, ...]
    """Candidates that need more launches."""
    comparisons: tuple[Comparison, ...]
    """Provisional comparisons of all candidates."""


class LaunchGate:
    """A gate that is always open."""

    waited_s: float = 0.0
    """Total waiting time so far."""
    why_closed: str = ""
    """Why no further launch was admitted, for the notes of the comparisons."""

    def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:  # noqa: ARG002
        """Wait for the next launch; return False if the session must end with what it has."""
        return True

    def launch_ended(self) -> None:
        """Record that the launch has ended, for any reason: it can no longer be stopped."""


class StoppableGate(LaunchGate):
    """A gate that a signal can close; the launch in progress is then stopped."""

    def __init__(self, *, why: str) -> None:
        """`why` is the note of comparisons that were stopped."""
        self._why = why
        self._launching = False
        self.stopped = False
        """Whether the gate was closed before the session ended."""

    def stop(self) -> None:
        """Admit no further launch, and stop the one in progress."""
        self.stopped = True
        self.why_closed = self._why
        if self._launching:
            self._launching = False
            raise LaunchStopped

    def launch_ended(self) -> None:
        """Ignore a signal until the next launch: the results of the last one are being recorded."""
        self._launching = False

    def _begin_launch(self) -> bool:
        """Return False if the gate is closed; a signal from here on raises."""
        self._launching = True
        self._launching = not self.stopped
        return self._launching


class DeadlineGate(StoppableGate):
    """A gate that closes after some time, and then also stops the launch in progress.

    A context manager, for the main thread. A launch is admitted if a part of the duration of the
    latest one remains.
    """

    FITTING_SHARE: Final = 0.7

    def __init__(self, limit_s: float, *, why: str) -> None:
        """`why` is the note of comparisons that were stopped."""
        super().__init__(why=why)
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._admitted_s: float | None = None
        self._latest_s = 0.0
        self._timer: threading.Timer | None = None
        self._handler: Any = None

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        if math.isfinite(self._limit_s):
            self._handler = signal.signal(_STOP_SIGNAL, lambda _number, _frame: self.stop())
            target = threading.main_thread().ident or 0
            self._timer = threading.Timer(
                max(0.0, self._limit_s), signal.pthread_kill, (target, _STOP_SIGNAL)
            )
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            # A pending signal then calls this handler, which no longer raises.
            time.sleep(0)
            signal.signal(_STOP_SIGNAL, self._handler)

    def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:  # noqa: ARG002
        """Return whether another launch fits."""
        now_s = time.monotonic()
        if self._admitted_s is not None:
            self._latest_s = now_s - self._admitted_s
        if now_s + self.FITTING_SHARE * self._latest_s > self._began_s + self._limit_s:
            self.stop()
        self._admitted_s = now_s
        return self._begin_launch()


class RecordedGate(LaunchGate):
    """A gate that records provisional comparisons before it waits at another gate."""

    def __init__(
        self,
        gate: LaunchGate,
        *,
        record: Callable[[Comparison], None],
        on_wait: Callable[[bool], None],
    ) -> None:
        """`on_wait` is called with True before waiting and with False before a launch after the first."""
        self._gate = gate
        self._record = record
        self._on_wait = on_wait

    @property
    def waited_s(self) -> float:  # type: ignore[override]
        """Total waiting time at the other gate."""
        return self._gate.waited_s

    @property
    def why_closed(self) -> str:  # type: ignore[override]
        """Why the other gate was closed."""
        return self._gate.why_closed

    def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:
        """Record the comparisons, then wait at the other gate."""
        current = progress()
        if not current.launches:
            return self._gate.admits(lambda: current)
        for comparison in current.comparisons:
            self._record(comparison)
        self._on_wait(True)
        admitted = self._gate.admits(lambda: current)
        if admitted:
            self._on_wait(False)
        return admitted

    def launch_ended(self) -> None:
        """Notify the other gate."""
        self._gate.launch_ended()

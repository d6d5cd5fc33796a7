"""The gate of a cell: between two launches, the cell waits until the driver grants the next one.

Driver and cell are connected by a pair of Unix sockets, whose ends are inherited. One message is one
packet of JSON. The cell sends its progress (`CellReport`) and blocks; the driver answers `go` or
`finish`. If the driver ends for any reason, the kernel closes its end, and the cell ends as after
Ctrl-C. `STOP_SIGNAL` stops the launch in progress: the cell then ends with its finished launches.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from torchyard.bench.launch_gate import ProvisionalResults, StoppableGate
from torchyard.core.comparison import Comparison
from torchyard.core.records import decode, encode
from torchyard.errors import UsageError

GATE_VARIABLE: Final = "TORCHYARD_GATE"
"""Descriptor of the cell's end of the socket pair."""
STOP_SIGNAL: Final = signal.SIGUSR1
GO: Final = b"go"
FINISH: Final = b"finish"
BUDGET_NOTE: Final = "stopped early: the time budget of the sweep was used up"
_LARGEST_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class OpenComparison:
    """An undecided comparison, from which the order of launches is computed."""

    log_speedup: float
    launch_sd: float | None
    """Standard deviation between launches; None after one launch."""


@dataclass(frozen=True, kw_only=True)
class CellReport:
    """Progress of a cell that waits for its next launch."""

    launches: int = 0
    undecided: tuple[OpenComparison, ...] = ()

    @classmethod
    def of(cls, progress: ProvisionalResults) -> CellReport:
        """Return the report of a session's progress."""
        rows = [row for row in progress.comparisons if row.candidate in progress.undecided]
        comparisons = tuple(one for row in rows if (one := _open_comparison(row)) is not None)
        return cls(launches=progress.launches, undecided=comparisons)

    def encode(self) -> bytes:
        """Return the message of this report."""
        return json.dumps(encode(self)).encode("ascii")

    @classmethod
    def decode(cls, message: bytes) -> CellReport:
        """Read a message; an invalid one counts as a report without results."""
        try:
            return decode(cls, json.loads(message), where="report", strict=False)
        except (ValueError, UsageError):
            return cls()


def _open_comparison(row: Comparison) -> OpenComparison | None:
    estimate = row.estimate
    if estimate is None or not estimate.launches or not 0.0 < estimate.speedup < math.inf:
        return None
    return OpenComparison(log_speedup=math.log(estimate.speedup), launch_sd=estimate.launch_sd)


class CellGate(StoppableGate):
    """The cell's side; without a driver that grants launches, always open."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is the inherited end of the socket pair."""
        super().__init__(why=BUDGET_NOTE)
        self._socket: socket.socket | None = None
        self._waiting = False
        self.launches = 0
        """Launches that were measured."""
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
            self._socket = socket.socket(fileno=descriptor)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the gate that the executor set up, and handle `STOP_SIGNAL`; else an open gate."""
        number = environment.get(GATE_VARIABLE, "")
        if not number.isdecimal():
            return cls()
        gate = cls(int(number))
        signal.signal(STOP_SIGNAL, lambda _number, _frame: gate.stop())
        return gate

    @property
    def idle(self) -> bool:
        """Whether it waits for the driver."""
        return self._waiting

    def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:
        """Report the progress and wait for the answer of the driver."""
        self._launching = False
        current = progress()
        self.launches = current.launches
        if self._socket is None or self.stopped:
            return self._begin_launch()
        began_s = time.monotonic()
        self._waiting = True
        try:
            self._socket.send(CellReport.of(current).encode())
            answer = self._socket.recv(_LARGEST_BYTES)
        except OSError:
            answer = b""
        finally:
            self.waited_s += time.monotonic() - began_s
        if answer == FINISH:
            self.stop()
        elif answer != GO:
            # The driver has ended. The signal that reports the same must not raise again.
            signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt
        self._waiting = False
        return self._begin_launch()


class DriverGate:
    """The driver's side of one cell's gate."""

    def __init__(self) -> None:
        """Create the socket pair; `cell_end` is closed once the cell has inherited it."""
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self.cell_end = pair
        self._socket.setblocking(False)
        self.report: CellReport | None = None
        """The latest report, while the cell waits for an answer."""
        self.closed = False
        """Whether the cell has closed its end."""

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is a report or the cell has ended."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Read a report if there is one; return whether the cell now waits."""
        with suppress(BlockingIOError, ConnectionError):
            message = self._socket.recv(_LARGEST_BYTES)
            if message:
                self.report = CellReport.decode(message)
            else:
                self.closed = True
        return self.report is not None

    def answer(self, message: bytes) -> None:
        """Answer a waiting cell; if it has ended meanwhile, its process reports that."""
        self.report = None
        with suppress(OSError):
            self._socket.send(message)

    def close(self) -> None:
        """Close the driver's end; a cell that waits ends."""
        self._socket.close()
        self.cell_end.close()

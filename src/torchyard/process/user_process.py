"""Wait for a process of the user: forward signals, return the exit code as a shell reports it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import torchyard.worker

__all__ = ["wait_passing_signals"]

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP)


def wait_passing_signals(
    process: subprocess.Popen[bytes], *, limit_s: float | None = None
) -> tuple[int, int]:
    """Return the exit code (128 + number after a signal) and the signal that requested the end, or 0.

    The signal is SIGINT (Ctrl-C), SIGTERM or SIGHUP. The process is killed after `limit_s`.
    """
    interrupted = 0
    with _forwarding_signals(process) as forwarded:
        code: int | None = None
        while code is None:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                limit_s = None
            except KeyboardInterrupt:
                # The terminal sent it to the program, too: it writes its results and ends.
                interrupted = int(signal.SIGINT)
    return (128 - code if code < 0 else code), interrupted or (forwarded[0] if forwarded else 0)


@contextmanager
def _forwarding_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forward signals that the terminal does not send to the program itself; yield their numbers.

    A signal that is ignored (`nohup`) stays ignored.
    """
    forwarded: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.append(number)
        # The worker saves its results on SIGTERM; SIGHUP is forwarded as SIGTERM.
        process.send_signal(signal.SIGTERM)

    before = {
        number: signal.signal(number, forward)
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


PROGRAM_ENTRY: Final = (
    Path(torchyard.worker.__file__).resolve().parent / "values" / "run_program.py"
)

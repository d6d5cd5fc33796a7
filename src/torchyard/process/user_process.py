"""Wait for a process of the user: pass signals on, return the exit code as a shell reports it.

Knows nothing of what runs.
"""

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

_PASSED: Final = (signal.SIGTERM, signal.SIGHUP)


def wait_passing_signals(
    process: subprocess.Popen[bytes], *, limit_s: float | None = None
) -> tuple[int, int]:
    """Its exit code (128 and the number after a signal), and the signal that asked it to end, or 0.

    By Ctrl-C (SIGINT), SIGTERM or SIGHUP. A process that takes longer than the limit is ended.
    """
    interrupted = 0
    with _signals_to(process) as passed:
        code: int | None = None
        while code is None:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                limit_s = None
            except KeyboardInterrupt:
                # The terminal sent it to the program, too: it ends by itself, and writes first.
                interrupted = int(signal.SIGINT)
    return (128 - code if code < 0 else code), interrupted or (passed[0] if passed else 0)


@contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Hand signals on that the terminal does not send to the program by itself; those handed on.

    A signal that is ignored, as `nohup` has it, stays ignored.
    """
    passed: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        passed.append(number)
        # The worker keeps its results on SIGTERM. A lost terminal asks for the same.
        process.send_signal(signal.SIGTERM)

    before = {
        number: signal.signal(number, hand_on)
        for number in _PASSED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


PROGRAM_ENTRY: Final = (
    Path(torchyard.worker.__file__).resolve().parent / "values" / "run_program.py"
)

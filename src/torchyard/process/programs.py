"""Run programs: to their end for their output, measured through a small starter, or with signals forwarded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final, Self, cast

import torchyard.worker
from torchyard.core.records import decode
from torchyard.errors import UsageError, WorkerFailed
from torchyard.process import program_starter


def capture(
    argv: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    limit_s: float | None = None,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program without input; a nonzero exit code does not raise.

    `variables` is the complete environment [default: that of this process]. With `together`,
    `stdout` also has the text of standard error. Raises OSError if the program cannot be started,
    and subprocess.TimeoutExpired after `limit_s`.
    """
    return subprocess.run(
        argv,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        timeout=limit_s,
        check=False,
    )


_STARTER: Final = str(Path(program_starter.__file__).resolve())
_END_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """Measurements of one run of a program, from its start to its end."""

    started_ns: int = 0
    wall_ns: int = 0
    exit_code: int = 0
    """Negative: the number of the signal that ended it."""
    timed_out: bool = False
    cpu_ns: int = 0
    """User and system time, with that of child processes it waited for."""
    peak_memory_bytes: int = 0
    """Largest resident set of the program or one of its child processes."""
    run_queue_wait_ns: int | None = None
    """How long its main thread waited for a core."""
    involuntary_switches: int = 0
    major_faults: int = 0
    error: str = ""
    """Why it could not be started."""

    @property
    def failed(self) -> bool:
        """Whether it did not start, did not end in time, or returned another code than 0."""
        return bool(self.error or self.exit_code or self.timed_out)


class ProgramStarter:
    """The starter process; a context manager, at whose end no program runs."""

    def __init__(self, folder: Path | None = None) -> None:
        """Programs start in `folder` [default: the current one]."""
        if folder is not None and not folder.is_dir():
            raise UsageError(
                f"the folder {folder} does not exist",
                why="the commands were given in it",
                hint="give the commands again in another folder",
            )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _STARTER],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal reaches neither the starter nor the programs.
            start_new_session=True,
        )
        self._requests = cast("BinaryIO", self._process.stdin)
        self._answers = cast("BinaryIO", self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(
        self,
        argv: Sequence[str],
        *,
        stderr: Path,
        limit_s: float,
        stdout: Path | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str | None] | None = None,
    ) -> ProgramRun:
        """Run a program to its end without input; standard output is discarded without `stdout`.

        `folder` is its working directory [default: that of the starter]; the next run keeps it.
        `variables` are added to its environment; None removes one.
        """
        request = {
            "argv": list(argv),
            "stderr": str(stderr.absolute()),
            "stdout": None if stdout is None else str(stdout.absolute()),
            "folder": None if folder is None else str(folder.absolute()),
            "limit_s": limit_s,
            "variables": dict(variables or {}),
        }
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        line = self._answers.readline()
        if not line:
            raise WorkerFailed(
                "the process that starts programs ended", hint="check that it was not killed"
            )
        return decode(ProgramRun, json.loads(line), where="program run", strict=False)


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

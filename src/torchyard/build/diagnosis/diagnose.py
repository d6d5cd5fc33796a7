"""From a log to a diagnosis: reads the log once and ranks what was seen in it."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from torchyard.build.diagnosis.gate import Gate
from torchyard.build.diagnosis.log_blocks import read_blocks
from torchyard.build.diagnosis.matching import Patterns
from torchyard.build.diagnosis.ranking import Circumstances, rank
from torchyard.build.diagnosis.scan import Scan, gate_for
from torchyard.build.diagnosis.signature import load_signatures
from torchyard.build.diagnosis.verdict import Diagnosis
from torchyard.errors import NotAllowed, UsageError

__all__ = ["diagnose"]

_SIGNALLED = 128


def diagnose(
    log: str | Path | BinaryIO,
    *,
    exit_code: int | None = None,
    wanted_names: tuple[str, ...] = (),
    release: str = "",
    machine: str = "",
) -> Diagnosis:
    """Why a build failed: known causes, the first real error, the command that failed.

    A str is the log itself, a Path the file it is in, and a stream is read to its end. `exit_code` is that of the failed command
    (a negative one names a signal), `wanted_names` the hosts that a build without network asked
    for, `release` and `machine` (as `uname -m`) choose between remedies.
    """
    code = _SIGNALLED - exit_code if exit_code is not None and exit_code < 0 else exit_code
    circumstances = Circumstances(
        exit_code=code, wanted_names=wanted_names, release=release, machine=machine
    )
    if isinstance(log, Path):
        with _opened(log) as file:
            return _read(file, circumstances, log=str(log))
    if isinstance(log, str):
        return _read(io.BytesIO(log.encode("utf-8", "replace")), circumstances, log="")
    return _read(log, circumstances, log="")


@cache
def _shipped() -> tuple[Patterns, Gate]:
    patterns = Patterns(load_signatures())
    return patterns, gate_for(patterns)


def _opened(path: Path) -> BinaryIO:
    """Open a log; a device never ends, and a FIFO without a writer never begins."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"there is no log {path}", hint="give the path of a log file") from None
    except PermissionError:
        raise NotAllowed(f"cannot read {path}", hint="ask its owner, or copy it") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {str(path)!r}", why=str(error), hint="give the path of a log file"
        ) from None
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind) and not (stat.S_ISFIFO(kind) and _is_open_already(path)):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(kind) else "a device, a socket or a FIFO"
        hint = "give a log file in it" if stat.S_ISDIR(kind) else "pipe the log in, and give `-`"
        raise UsageError(f"{path} is {what}", hint=hint)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _is_open_already(path: Path) -> bool:
    """Whether the path names a pipe that this process was started with, as `<(command)` does."""
    return path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) or path == Path("/dev/stdin")


def _read(file: BinaryIO, circumstances: Circumstances, *, log: str) -> Diagnosis:
    patterns, gate = _shipped()
    scan = Scan(patterns, gate)
    try:
        for block in read_blocks(file):
            scan.feed(block)
    except OSError as error:
        raise UsageError(
            f"cannot read {log or 'the log'}", why=str(error), hint="give the path of a log file"
        ) from error
    scan.end()
    code = circumstances.exit_code
    failed = (
        code != 0 if code is not None else scan.outcome.failed or bool(circumstances.wanted_names)
    )
    found = scan.evidence if failed else scan.finder
    first, command = found.found, found.failed_command
    attempt = scan.matcher.attempt if found is scan.finder and (first or command) else 0
    circumstances = replace(circumstances, failed=failed, attempt=attempt)
    return Diagnosis(
        causes=rank(patterns.signatures, scan.matcher.sightings, circumstances),
        first_error=first if failed else None,
        failed_command=command if failed else None,
        lines=scan.lines,
        log=log,
        exit_code=code,
        failed=failed,
        overcome=None if failed else scan.evidence.found,
    )

"""From a log to a diagnosis: reads the log once and ranks what was seen in it."""

from __future__ import annotations

import io
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
    text_or_path: str | Path,
    *,
    exit_code: int | None = None,
    wanted_names: tuple[str, ...] = (),
    release: str = "",
    machine: str = "",
) -> Diagnosis:
    """Why a build failed: known causes, the first real error, the command that failed.

    A str is the log itself, a Path the file it is in. `exit_code` is that of the failed command
    (a negative one names a signal), `wanted_names` the hosts that a build without network asked
    for, `release` and `machine` (as `uname -m`) choose between remedies.
    """
    code = _SIGNALLED - exit_code if exit_code is not None and exit_code < 0 else exit_code
    circumstances = Circumstances(
        exit_code=code, wanted_names=wanted_names, release=release, machine=machine
    )
    if isinstance(text_or_path, Path):
        with _opened(text_or_path) as file:
            return _read(file, circumstances, log=str(text_or_path))
    data = text_or_path.encode("utf-8", "replace")
    return _read(io.BytesIO(data), circumstances, log="")


@cache
def _shipped() -> tuple[Patterns, Gate]:
    patterns = Patterns(load_signatures())
    return patterns, gate_for(patterns)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"there is no log {path}", hint="give the path of a log file") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", hint="give a log file in it") from None
    except PermissionError:
        raise NotAllowed(f"cannot read {path}", hint="ask its owner, or copy it") from None


def _read(file: BinaryIO, circumstances: Circumstances, *, log: str) -> Diagnosis:
    patterns, gate = _shipped()
    scan = Scan(patterns, gate)
    for block in read_blocks(file):
        scan.feed(block)
    scan.end()
    return Diagnosis(
        causes=rank(patterns.signatures, scan.matcher.sightings, circumstances),
        first_error=scan.finder.found,
        failed_command=scan.finder.failed_command,
        lines=scan.lines,
        log=log,
        exit_code=circumstances.exit_code,
    )

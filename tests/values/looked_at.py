"""Programs under the watch without proofs, for tests of patterns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import Session
from torchyard.worker.values.scanning.cpu_scan import Scanner
from torchyard.worker.values.scanning.scanners import Scanners


def look(
    program: Callable[[], object],
    *,
    deep: bool = False,
    approximate: bool = False,
    least_bytes: int = 4096,
    scanner: Scanner | None = None,
) -> list[Finding]:
    """What is found in a program."""
    options = Options(deep=deep, approximate=approximate, least_bytes=least_bytes, prove=False)
    session = Session(options)
    if scanner is not None:
        scanners = session.mode._scanners = Scanners(scanner)
        for pattern in session.patterns:
            pattern.scanner = scanners
    torch.manual_seed(3)
    session.start()
    try:
        program()
    finally:
        session.stop()
    return session.findings.all()


def look_with_steps(
    step: Callable[[], object], *, steps: int = 4, deep: bool = False
) -> list[Finding]:
    """What is found in a program that says where its steps end."""
    session = Session(Options(deep=deep, prove=False))
    torch.manual_seed(3)
    session.start()
    try:
        for _ in range(steps):
            step()
            session.step()
    finally:
        session.stop()
    return session.findings.all()


def names(found: list[Finding]) -> list[tuple[str, str]]:
    """(pattern, operator) of findings, without `aten::`."""
    return [(one.pattern, one.operator.removeprefix("aten::")) for one in found]


def patterns(found: list[Finding]) -> set[str]:
    """The patterns among findings."""
    return {one.pattern for one in found}


def only(found: list[Finding], pattern: str) -> Finding:
    """The one finding of a pattern."""
    wanted = [one for one in found if one.pattern == pattern]
    assert len(wanted) == 1, names(found)
    return wanted[0]

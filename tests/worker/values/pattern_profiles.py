"""Value profiling without proofs, for tests of patterns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.scanning.cpu_scan import Scanner
from torchyard.worker.values.scanning.scanners import Scanners


def profile_patterns(
    program: Callable[[], object],
    *,
    deep: bool = False,
    approximate: bool = False,
    least_bytes: int = 4096,
    scanner: Scanner | None = None,
) -> list[Finding]:
    """Return the findings of a program."""
    options = Options(deep=deep, approximate=approximate, least_bytes=least_bytes, prove=False)
    session = ProfilingSession(options)
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
    assert not [note for note in session.notes if "profiler failed" in note]
    return session.findings.all()


def profile_steps(
    step: Callable[[], object], *, steps: int = 4, deep: bool = False
) -> list[Finding]:
    """Return the findings of a program with explicit steps."""
    session = ProfilingSession(Options(deep=deep, prove=False))
    torch.manual_seed(3)
    session.start()
    try:
        for _ in range(steps):
            step()
            session.step()
    finally:
        session.stop()
    assert not [note for note in session.notes if "profiler failed" in note]
    return session.findings.all()


def names(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return (pattern, operator) of findings, without `aten::`."""
    return [(one.pattern, one.operator.removeprefix("aten::")) for one in findings]


def patterns(findings: list[Finding]) -> set[str]:
    """Return the patterns of findings."""
    return {one.pattern for one in findings}


def only(findings: list[Finding], pattern: str) -> Finding:
    """Return the only finding of a pattern."""
    matching = [one for one in findings if one.pattern == pattern]
    assert len(matching) == 1, names(findings)
    return matching[0]

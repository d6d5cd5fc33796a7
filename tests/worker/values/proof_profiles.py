"""Value profiling with proofs, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.proofs.certainty import NATIVE_PROGRAM, certainty_of, make_test


def watched(program: Callable[[], Any], *, times: int = 1, **options: Any) -> ProfilingSession:
    """Profile a program, deep by default."""
    session = ProfilingSession(
        Options(**{"deep": True, "least_bytes": 256, "graph": False, **options})
    )
    session.start()
    try:
        for _ in range(times):
            program()
    finally:
        session.stop()
    return session


def findings_of(session: ProfilingSession, pattern: str, operator: str = "") -> list[Finding]:
    """Return the findings of a pattern, in or of an operator."""
    return [
        finding
        for finding in session.findings.all()
        if finding.pattern == pattern
        and (not operator or operator in (*finding.path, finding.operator))
    ]


def one(session: ProfilingSession, pattern: str, operator: str = "") -> Finding:
    """Return the only finding of a pattern."""
    findings = findings_of(session, pattern, operator)
    all_findings = [(f.pattern, f.path, f.operator) for f in session.findings.all()]
    assert len(findings) == 1, all_findings
    return findings[0]


def certainty_if_native(finding: Finding) -> str:
    """Return the certainty after a confirmed native run."""
    tests = [*finding.proof["tests"], make_test(NATIVE_PROGRAM, True)]
    return certainty_of(tests, inside=bool(finding.path))[0]


def named_tests(finding: Finding, name: str) -> list[dict[str, Any]]:
    """Return the tests of one kind of a finding."""
    return [test for test in finding.proof["tests"] if test["test"] == name]

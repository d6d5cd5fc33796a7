"""Programs under the watch with proofs, for tests of several files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import Session
from torchyard.worker.values.proofs.certainty import NATIVE_PROGRAM, judge, make_test


def watched(program: Callable[[], Any], *, times: int = 1, **options: Any) -> Session:
    """Run a program under the watch, deep by default."""
    session = Session(Options(**{"deep": True, "least_bytes": 256, "graph": False, **options}))
    session.start()
    try:
        for _ in range(times):
            program()
    finally:
        session.stop()
    return session


def findings_of(session: Session, pattern: str, operator: str = "") -> list[Finding]:
    """Findings of a pattern, in or of an operator."""
    return [
        found
        for found in session.findings.all()
        if found.pattern == pattern and (not operator or operator in (*found.path, found.operator))
    ]


def one(session: Session, pattern: str, operator: str = "") -> Finding:
    """The only one of them."""
    found = findings_of(session, pattern, operator)
    said = [(f.pattern, f.path, f.operator) for f in session.findings.all()]
    assert len(found) == 1, said
    return found[0]


def certainty_if_native(finding: Finding) -> str:
    """How sure it is once a run without the watch has confirmed it."""
    tests = [*finding.proof["tests"], make_test(NATIVE_PROGRAM, True)]
    return judge(tests, inside=bool(finding.path))[0]


def named_tests(finding: Finding, name: str) -> list[dict[str, Any]]:
    """The tests of one kind behind a finding."""
    return [test for test in finding.proof["tests"] if test["test"] == name]

"""Profile every program of the collection in this process and print the findings.

    python profile_all.py NAME...        or all of them

A process of its own has no threads but this one, whatever runs the tests.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from tests.values.adversary.program import Program
from tests.values.adversary.register import FALSE, TRUE
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.proofs.certainty import (
    NATIVE_OPERATOR,
    NATIVE_PROGRAM,
    certainty_of,
    make_test,
)


def profile(program: Program, *, deep: bool) -> list[dict[str, Any]]:
    """Its findings, as sure as a run without the watch can make them."""
    session = ProfilingSession(Options(deep=deep, least_bytes=256, graph=False))
    torch.manual_seed(0)
    session.start()
    try:
        program.run(False)
    finally:
        session.stop()
    return [_described(found) for found in session.findings.all()]


def _described(found: Finding) -> dict[str, Any]:
    tests = [*found.proof.get("tests", ()), make_test(NATIVE_PROGRAM, True)]
    if not any(test["test"] == NATIVE_OPERATOR for test in tests):
        tests.append(make_test(NATIVE_OPERATOR, True))
    certainty, why = certainty_of(tests, inside=bool(found.path))
    return {
        "pattern": found.pattern,
        "operator": found.operator,
        "path": list(found.path),
        "line": found.place.line,
        "certainty": certainty,
        "why": why,
    }


def advice_changes(program: Program) -> bool:
    """Whether following the advice changes a result, for the values seen or for others."""
    fixed = program.fixed()
    return any(_result(program.run, other) != _result(fixed, other) for other in (False, True))


def _result(run: Any, other: bool) -> str:
    torch.manual_seed(0)
    torch.set_printoptions(precision=9, sci_mode=True, threshold=100_000)
    return repr(run(other))


def main() -> None:
    """Print one JSON object."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    found = {
        program.name: {
            "fast": profile(program, deep=False),
            "deep": profile(program, deep=True),
            "advice changes": advice_changes(program),
        }
        for program in (*FALSE, *TRUE)
        if not wanted or program.name in wanted
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

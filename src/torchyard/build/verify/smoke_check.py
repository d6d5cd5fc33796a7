"""The recipe's smoke tests: a few lines each, in a process of their own, with a limit of time."""

from __future__ import annotations

import signal

from torchyard.build.verify.check import Checked, Subject
from torchyard.build.verify.target_python import SnippetOutcome
from torchyard.core.build_record import CheckFinding, SmokeResult

__all__ = ["check_smoke", "say_ending"]


def check_smoke(subject: Subject) -> Checked:
    """Run each one; none runs when the module does not even import."""
    tests = subject.component.recipe.verify.smoke
    if subject.target is None or not tests:
        return Checked()
    if subject.module is not None and not subject.module.file:
        return Checked()
    results: list[SmokeResult] = []
    findings: list[CheckFinding] = []
    for test in tests:
        outcome = subject.target.snippet(test.python, limit_s=subject.smoke_limit_s)
        results.append(
            SmokeResult(
                name=test.name,
                passed=outcome.good,
                duration_s=outcome.duration_s,
                output="" if outcome.good else outcome.tail(),
            )
        )
        if not outcome.good:
            findings.append(
                CheckFinding(
                    check="smoke",
                    level="failure",
                    what=f"smoke test {test.name!r} {_ending(outcome, subject.smoke_limit_s)}",
                    why=outcome.tail(),
                    mend="activate the build and run the lines of the recipe's verify.smoke by hand",
                )
            )
    return Checked(findings=tuple(findings), smoke=tuple(results))


def say_ending(returncode: int) -> str:
    """How a process ended, for people."""
    number = -returncode if returncode < 0 else returncode - 128
    # A shell or a sandbox in between reports a signal as 128 + its number.
    if returncode < 0 or 0 < number < 65:  # noqa: PLR2004
        try:
            return f"signal {signal.Signals(number).name}"
        except ValueError:
            return f"signal {number}"
    return f"exit code {returncode}"


def _ending(outcome: SnippetOutcome, limit_s: float) -> str:
    if outcome.timed_out:
        return f"took longer than {limit_s:g} s"
    return f"failed ({say_ending(outcome.returncode)})"

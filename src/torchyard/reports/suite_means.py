"""One mean per candidate over the comparisons that count, and the list of those that do not.

`stats` computes the mean; this chooses what goes in, so that a wrong, failed or untrusted comparison
never changes it, and says what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchyard.core.comparison import (
    WITHOUT_SPEED,
    Comparison,
    Estimate,
    Interval,
    Scope,
    Verdict,
)
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import accuracy_text, failure_text

__all__ = ["SuiteMean", "left_out", "suite_means"]


@dataclass(frozen=True, kw_only=True)
class SuiteMean:
    """The geometric mean of one candidate's speedups."""

    candidate: str
    baseline: str
    speedup: float
    interval: Interval
    comparisons: int
    scope: Scope
    """What the interval speaks for: new processes, or only the ones that ran."""
    untrusted: int = 0
    """Comparisons that were left out because their numbers must not be trusted."""


def suite_means(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[SuiteMean]:
    """One mean per baseline and candidate, in the order of the table."""
    # numpy comes with it, and a report without a number needs none.
    from torchyard.stats.suite import counts_in_mean, geometric_mean

    means = []
    for baseline, candidate in dict.fromkeys((one.baseline, one.candidate) for one in comparisons):
        rows = [
            one for one in comparisons if (one.baseline, one.candidate) == (baseline, candidate)
        ]
        estimates = [one.estimate for one in _counted(rows) if one.estimate is not None]
        mean = geometric_mean(estimates, confidence=confidence) if estimates else None
        if mean is not None:
            means.append(
                SuiteMean(
                    candidate=candidate,
                    baseline=baseline,
                    speedup=mean[0],
                    interval=mean[1],
                    comparisons=len(estimates),
                    scope="launches" if counts_in_mean(estimates[0]) else "processes",
                    untrusted=sum(one.state is Verdict.UNTRUSTED for one in rows),
                )
            )
    return means


def left_out(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str]]:
    """The comparisons that are in no mean, each with its reason."""
    found: list[tuple[Comparison, str]] = []
    for baseline, candidate in dict.fromkeys((one.baseline, one.candidate) for one in comparisons):
        rows = [
            one for one in comparisons if (one.baseline, one.candidate) == (baseline, candidate)
        ]
        counted = {id(one) for one in _counted(rows)}
        found.extend((one, _reason(one)) for one in rows if id(one) not in counted)
    return found


def _counted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Of one candidate's rows, those that `geometric_mean` averages."""
    from torchyard.stats.suite import counts_in_mean

    sound = [one for one in rows if one.state not in WITHOUT_SPEED]
    over_launches = [one for one in sound if one.estimate and counts_in_mean(one.estimate)]
    return over_launches or [one for one in sound if _has_interval(one.estimate)]


def _has_interval(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.interval is not None


def _reason(comparison: Comparison) -> str:
    if comparison.failure is not None:
        return failure_text(comparison.failure)
    if comparison.verdict is Verdict.FAILED:
        return "no reason was recorded"
    if comparison.verdict is Verdict.WRONG:
        return f"results {accuracy_text(comparison.accuracy)}"
    if not comparison.trusted:
        return "; ".join(one_line(reason) for reason in comparison.untrusted)
    return "too few launches for a spread between them"

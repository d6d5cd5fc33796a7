"""One row per suite and candidate: its mean, how many comparisons passed, and every verdict.

A comparison passes when it ran and its results were found right; how fast it was does not matter.
What could not be compared, because it is random or not deterministic, has not passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard.core.comparison import Comparison, Verdict
from torchyard.reports.suite_means import SuiteMean, suite_means

__all__ = ["SuiteRow", "pass_text", "suite_rows"]


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """What a suite says of one candidate."""

    suite: str
    baseline: str
    candidate: str
    counts: Mapping[Verdict, int]
    mean: SuiteMean | None
    """None when no comparison of it counts."""
    passed: int
    """Those that ran with results that were found right."""

    @property
    def total(self) -> int:
        """All comparisons."""
        return sum(self.counts.values())


def suite_rows(comparisons: Sequence[Comparison], *, confidence: float) -> list[SuiteRow]:
    """In the order of the table."""
    keys = dict.fromkeys((one.workload.suite, one.baseline, one.candidate) for one in comparisons)
    rows = []
    for suite, baseline, candidate in keys:
        own = [
            one
            for one in comparisons
            if (one.workload.suite, one.baseline, one.candidate) == (suite, baseline, candidate)
        ]
        found = Counter(one.state for one in own)
        means = suite_means(own, confidence=confidence)
        rows.append(
            SuiteRow(
                suite=suite,
                baseline=baseline,
                candidate=candidate,
                counts={verdict: found[verdict] for verdict in Verdict if found[verdict]},
                mean=means[0] if means else None,
                passed=sum(one.passed for one in own),
            )
        )
    return rows


def pass_text(passed: int, total: int) -> str:
    """`5 of 6 (83%)`; only all is 100 %."""
    if not total:
        return "none"
    share = 100 if passed == total else min(99, round(100 * passed / total))
    return f"{passed} of {total} ({share}%)"

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
    not_checked: int = 0
    """Those that ran and whose results could not be checked."""

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
        found = Counter(one.verdict for one in own)
        means = suite_means(own, confidence=confidence)
        rows.append(
            SuiteRow(
                suite=suite,
                baseline=baseline,
                candidate=candidate,
                counts={verdict: found[verdict] for verdict in Verdict if found[verdict]},
                mean=means[0] if means else None,
                passed=sum(one.passed for one in own),
                not_checked=sum(one.not_checked for one in own),
            )
        )
    return rows


def pass_text(passed: int, total: int, not_checked: int = 0) -> str:
    """`5 of 6 (83%), 1 not checked`; only all is 100 %, and rows not checked are in no share."""
    if not total:
        return "none"
    checked = total - not_checked
    if not checked:
        return f"{not_checked} not checked"
    share = 100 if passed == checked else min(99, round(100 * passed / checked))
    text = f"{passed} of {checked} ({share}%)"
    return f"{text}, {not_checked} not checked" if not_checked else text

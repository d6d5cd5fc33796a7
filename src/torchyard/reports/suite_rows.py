"""One row per suite and candidate: its mean, how many comparisons passed, and every verdict.

A comparison passes when it ran and its results were not wrong; how fast it was does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.reports.suite_means import SuiteMean, suite_means

__all__ = ["NOT_PASSED", "SuiteRow", "pass_text", "suite_rows"]

NOT_PASSED: Final = frozenset({Verdict.WRONG, Verdict.FAILED})


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """What a suite says of one candidate."""

    suite: str
    baseline: str
    candidate: str
    counts: Mapping[Verdict, int]
    mean: SuiteMean | None
    """None when no comparison of it counts."""

    @property
    def total(self) -> int:
        """All comparisons."""
        return sum(self.counts.values())

    @property
    def passed(self) -> int:
        """Those that ran with results that are not wrong."""
        return sum(count for verdict, count in self.counts.items() if verdict not in NOT_PASSED)


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
            )
        )
    return rows


def pass_text(passed: int, total: int) -> str:
    """`5 of 6 (83%)`; only all is 100 %."""
    if not total:
        return "none"
    share = 100 if passed == total else min(99, round(100 * passed / total))
    return f"{passed} of {total} ({share}%)"

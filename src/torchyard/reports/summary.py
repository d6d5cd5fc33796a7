"""The few lines below a table: counts, mean speedups, and what is missing from the means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchyard.core.comparison import Comparison, Verdict
from torchyard.reports.plain_text import one_line
from torchyard.reports.suite_means import SuiteMean, left_out, suite_means
from torchyard.reports.wording import MARKS, number_text, title_of, verdict_text

__all__ = ["counts_text", "mean_text", "summary_lines", "verdict_counts"]


def verdict_counts(comparisons: Sequence[Comparison]) -> dict[Verdict, int]:
    """How many comparisons are in each state, in the order of the table's legend."""
    counts = Counter(comparison.state for comparison in comparisons)
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def counts_text(comparisons: Sequence[Comparison]) -> str:
    """`3 comparisons: ▲ 2 faster, ✗ 1 failed`."""
    total = len(comparisons)
    if not total:
        return "no comparisons"
    counts = ", ".join(
        f"{MARKS[verdict]} {count} {verdict.value}"
        for verdict, count in verdict_counts(comparisons).items()
    )
    return f"{total} comparison{'s' if total != 1 else ''}: {counts}"


def mean_text(mean: SuiteMean) -> str:
    """`inductor against eager: geometric mean 1.052x [1.031, 1.073] over 5 comparisons`."""
    scope = ", for the processes that ran only" if mean.scope == "processes" else ""
    untrusted = f" ({mean.untrusted} untrusted left out)" if mean.untrusted else ""
    return (
        f"{one_line(mean.candidate)} against {one_line(mean.baseline)}: geometric mean "
        f"{number_text(mean.speedup)}x "
        f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}] "
        f"over {mean.comparisons} comparison{'s' if mean.comparisons != 1 else ''}{untrusted}{scope}"
    )


def summary_lines(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[str]:
    """Counts, one mean per candidate, and the failures beside them."""
    lines = [counts_text(comparisons)]
    lines.extend(mean_text(mean) for mean in suite_means(comparisons, confidence=confidence))
    missing = left_out(comparisons)
    if missing:
        lines.append("not in the mean:")
        lines.extend(
            f"  {verdict_text(comparison.state)}  {title_of(comparison)}: {reason}"
            for comparison, reason in missing
        )
    return lines

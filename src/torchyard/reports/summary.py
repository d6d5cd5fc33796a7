"""The few lines below a table: counts, mean speedup, and what is missing from the mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from torchyard.core.comparison import Comparison, Interval, Verdict
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import (
    MARKS,
    accuracy_text,
    failure_text,
    number_text,
    title_of,
)

__all__ = ["SuiteMean", "counts_text", "left_out", "mean_text", "summary_lines", "verdict_counts"]


class SuiteMean(Protocol):
    """A geometric mean of speedups, as `stats` computes it."""

    @property
    def speedup(self) -> float:
        """Of one candidate over its workloads."""

    @property
    def interval(self) -> Interval | None:
        """Of the mean."""

    @property
    def comparisons(self) -> int:
        """How many it is over."""


def verdict_counts(comparisons: Sequence[Comparison]) -> dict[Verdict, int]:
    """How many comparisons got each verdict, in the order of the table's legend."""
    counts = Counter(comparison.verdict for comparison in comparisons)
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


def mean_text(candidate: str, mean: SuiteMean) -> str:
    """`inductor: geometric mean 1.052x [1.031, 1.073] over 5 comparisons`."""
    text = f"{one_line(candidate)}: geometric mean {number_text(mean.speedup)}x"
    if mean.interval is not None:
        text += f" [{number_text(mean.interval.low)}, {number_text(mean.interval.high)}]"
    return f"{text} over {mean.comparisons} comparison{'s' if mean.comparisons != 1 else ''}"


def left_out(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str]]:
    """The comparisons without a number that counts, each with its reason."""
    found: list[tuple[Comparison, str]] = []
    for comparison in comparisons:
        if comparison.failure is not None:
            found.append((comparison, failure_text(comparison.failure)))
        elif comparison.verdict is Verdict.FAILED:
            found.append((comparison, "no reason was recorded"))
        elif comparison.verdict is Verdict.WRONG:
            found.append((comparison, f"results {accuracy_text(comparison.accuracy)}"))
    return found


def summary_lines(
    comparisons: Sequence[Comparison], *, means: Mapping[str, SuiteMean] | None = None
) -> list[str]:
    """Counts, one mean per candidate, and the failures beside them."""
    lines = [counts_text(comparisons)]
    lines.extend(mean_text(candidate, mean) for candidate, mean in (means or {}).items())
    missing = left_out(comparisons)
    if missing:
        lines.append("not in the mean:" if means else "without a result that counts:")
        lines.extend(
            f"  {MARKS[comparison.verdict]} {comparison.verdict.value}  "
            f"{title_of(comparison)}: {reason}"
            for comparison, reason in missing
        )
    return lines

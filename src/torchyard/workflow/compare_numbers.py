"""What one side has of one workload: its numbers, and whether they are sound.

Also says what speaks against a verdict on them. Only looks at recorded comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torchyard.core.comparison import Comparison, Interval, VariantMetrics, Verdict
from torchyard.core.cross_comparison import SideNumbers, SideState
from torchyard.results.run_reader import Run

__all__ = ["numbers_of", "row_obstacles", "state_of"]

_FEWEST_LAUNCHES = 2


def state_of(row: Comparison) -> SideState:
    """Whether the comparison has a number whose results are right."""
    if row.verdict is Verdict.FAILED:
        return "failed"
    if row.verdict is Verdict.WRONG:
        return "wrong"
    if row.estimate is None or not row.estimate.launches:
        return "no number"
    return "measured"


def row_obstacles(row: Comparison) -> list[str]:
    """Why the comparison cannot be set against one of another run, trust aside."""
    found = row.estimate
    if found is None:
        return ["no number"]
    obstacles = []
    if found.scope != "launches" or found.launches < _FEWEST_LAUNCHES:
        obstacles.append("one launch speaks for its own processes only")
    elif found.interval is None:
        obstacles.append("too little data for an interval")
    obstacles.extend(found.withheld)
    return obstacles


def numbers_of(found: Sequence[tuple[Run, Comparison]], variant: str) -> SideNumbers:
    """The side's numbers; over several sessions the geometric mean, and the newest of the rest."""
    if not found:
        return SideNumbers(variant=variant, sessions=0)
    rows = [row for _, row in found]
    newest = rows[-1]
    if newest.candidate != variant:
        return _of_baseline(rows, variant)
    metrics = newest.candidate_metrics
    estimates = [row.estimate for row in rows if row.estimate is not None]
    blocks = sum(row.guards.blocks for row in rows)
    return SideNumbers(
        variant=variant,
        baseline=newest.baseline,
        time_ns=_middle(row.candidate_metrics.time_ns for row in rows),
        speedup=_middle(estimate.speedup for estimate in estimates),
        interval=_only_interval(rows),
        launches=sum(estimate.launches for estimate in estimates),
        sessions=len(rows),
        baseline_ns=_middle(row.baseline_metrics.time_ns for row in rows),
        compile_s=metrics.compile_cold_s,
        memory_bytes=metrics.peak_memory_bytes,
        dirty_share=sum(row.guards.dirty for row in rows) / blocks if blocks else None,
        trusted=all(row.trusted for row in rows),
    )


def _of_baseline(rows: Sequence[Comparison], variant: str) -> SideNumbers:
    metrics: VariantMetrics = rows[-1].baseline_metrics
    return SideNumbers(
        variant=variant,
        time_ns=_middle(row.baseline_metrics.time_ns for row in rows),
        sessions=len(rows),
        baseline_ns=_middle(row.baseline_metrics.time_ns for row in rows),
        compile_s=metrics.compile_cold_s,
        memory_bytes=metrics.peak_memory_bytes,
        trusted=all(row.trusted for row in rows),
    )


def _only_interval(rows: Sequence[Comparison]) -> Interval | None:
    """Of a single session; several have no interval of their own."""
    if len(rows) > 1 or rows[0].estimate is None:
        return None
    return rows[0].estimate.interval


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return None
    return math.exp(math.fsum(map(math.log, known)) / len(known))

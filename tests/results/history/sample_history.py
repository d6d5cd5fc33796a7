"""Histories for tests: points with known changes, and a store of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from random import Random

from torchyard.results.index.store import Store
from torchyard.results.model import Metric, RunFilter, Series, SeriesPoint

START = datetime(2025, 1, 1, tzinfo=UTC)


def series_of(workload: str = "kernels/matmul inference", metric: Metric = "speedup") -> Series:
    return Series(
        workload=workload,
        baseline="eager",
        candidate="inductor",
        machine="epyc-64c",
        metric=metric,
    )


def points_of(
    count: int,
    *,
    step_at: int | None = None,
    ratio: float = 0.9,
    noise: float = 0.005,
    untrusted: Sequence[int] = (),
    level: float = 1.5,
    seed: int = 1,
) -> list[SeriesPoint]:
    """One point a day; from `step_at` on the value is `ratio` times what it was."""
    random = Random(seed)
    found = []
    for place in range(count):
        value = level * random.lognormvariate(0.0, noise)
        if step_at is not None and place >= step_at:
            value *= ratio
        if place in untrusted:
            value *= 2.0
        moment = START + timedelta(days=place)
        found.append(
            SeriesPoint(
                run=f"run-{place:04d}",
                started=moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                revision=f"{place:07x}",
                value=value,
                low=value * 0.99,
                high=value * 1.01,
                untrusted=place in untrusted,
            )
        )
    return found


class MemoryStore(Store):
    """Answers like the store, from a table."""

    def __init__(self, table: dict[Series, list[SeriesPoint]]) -> None:
        self.table = table
        self.asked = 0

    def series(self, filters: RunFilter, metric: Metric = "speedup") -> list[Series]:
        return [
            one
            for one in self.table
            if one.metric == metric
            and fnmatch(one.workload, filters.workload or "*")
            and fnmatch(one.candidate, filters.candidate or "*")
        ]

    def points(self, series: Series) -> list[SeriesPoint]:
        self.asked += 1
        return self.table[series]

"""The list of workloads: each with its latest verdict and a line of its speedups. Renders nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torchyard.core.comparison import WITHOUT_SPEED, Verdict
from torchyard.core.records import encode
from torchyard.core.stored import ComparisonEntry, Series
from torchyard.dashboard.archive import MOST_RECENT, Archive
from torchyard.dashboard.paging import Paging, page_of
from torchyard.dashboard.queries import PAGE_SIZE, WorkloadsRequest
from torchyard.dashboard.sparklines import Sparkline, sparkline
from torchyard.reports.wording import ABSENT, number_text

__all__ = ["FIELDS", "WorkloadRow", "workload_table", "workloads_data"]

FIELDS: Final = (
    ("workload", "Workload", "kernels/*"),
    ("candidate", "Candidate", "inductor*"),
    ("machine", "Machine", ""),
)


@dataclass(frozen=True, kw_only=True)
class WorkloadRow:
    """One series in the list."""

    series: Series
    latest: ComparisonEntry | None
    runs: int
    """Of the newest ones; there may be more beyond `MOST_RECENT`."""
    spark: Sparkline

    @property
    def runs_text(self) -> str:
        """How many."""
        if self.runs >= MOST_RECENT:
            return f"{MOST_RECENT} or more runs"
        return f"{self.runs} run{'s' if self.runs != 1 else ''}"

    @property
    def verdict_rank(self) -> int:
        """For sorting by verdict."""
        return list(Verdict).index(self.latest.verdict) if self.latest else len(Verdict)

    @property
    def speedup(self) -> str:
        """The latest."""
        speedup = self.latest.speedup if self.latest else None
        return ABSENT if speedup is None else self._shown(f"{number_text(speedup)}x")

    @property
    def interval(self) -> str:
        """Of the latest."""
        if self.latest is None or self.latest.low is None or self.latest.high is None:
            return ""
        return self._shown(f"[{number_text(self.latest.low)}, {number_text(self.latest.high)}]")

    @property
    def untrusted(self) -> str:
        """Why the latest must not be trusted."""
        return self.latest.untrusted if self.latest else ""

    def _shown(self, text: str) -> str:
        return f"({text})" if self.untrusted else text


def workload_table(
    archive: Archive, request: WorkloadsRequest, *, size: int = PAGE_SIZE
) -> tuple[list[WorkloadRow], Paging]:
    """One page of the series that were asked for, by name."""
    found = sorted(
        archive.series(request.wanted),
        key=lambda series: (series.workload, series.candidate, series.baseline, series.machine),
    )
    shown, paging = page_of(found, request.page, size=size)
    return [_row(archive, series) for series in shown], paging


def workloads_data(archive: Archive, request: WorkloadsRequest) -> dict[str, Any]:
    """The same as plain values."""
    rows, paging = workload_table(archive, request)
    return {
        "total": paging.total,
        "page": paging.page,
        "pages": paging.pages,
        "workloads": [
            {**encode(row.series), "runs": row.runs, "latest": encode(row.latest)} for row in rows
        ],
    }


def _row(archive: Archive, series: Series) -> WorkloadRow:
    recent = archive.recent(series)
    speedups = [
        entry.speedup
        for entry in reversed(recent)
        if entry.speedup is not None and entry.verdict not in WITHOUT_SPEED
    ]
    return WorkloadRow(
        series=series,
        latest=recent[0] if recent else None,
        runs=len(recent),
        spark=sparkline(speedups, tone=recent[0].verdict.value if recent else ""),
    )

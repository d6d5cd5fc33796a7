"""Two runs beside each other: what the page and its data show. Renders nothing.

Runs are given as entries of the index. What a request says is never taken for a folder or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard.core.cross_comparison import CrossComparison, CrossRow
from torchyard.core.records import encode
from torchyard.core.stored import RunEntry
from torchyard.errors import NothingToDo, ResultsDamaged, TorchyardError, UsageError
from torchyard.reports.compare_wording import (
    assumption_text,
    counts_text,
    drift_text,
    mean_text,
    notes_of_row,
    p_of_row,
    ratio_text,
    row_title,
    side_speedup,
    side_time,
    unpaired_text,
)
from torchyard.results.run_reader import Run, read_run
from torchyard.workflow.compare_rules import Rules
from torchyard.workflow.compare_runs import compare_sides
from torchyard.workflow.compare_sides import Side

__all__ = ["Chosen", "Compared", "compare_chosen", "compared_data"]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One side as it was chosen."""

    run: RunEntry
    variant: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came out, or why nothing could."""

    comparison: CrossComparison | None = None
    problem: TorchyardError | None = None
    variants: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Of both runs, to choose from."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the template shows of each row, as text and numbers."""
        if self.comparison is None:
            return []
        several = self._several()
        return [_row(row, several) for row in self.comparison.rows]

    @property
    def unpaired(self) -> list[tuple[str, str]]:
        """Workloads that cannot be compared, and why."""
        if self.comparison is None:
            return []
        several = self._several()
        return [
            (row_title(item, variants=several), unpaired_text(item))
            for item in self.comparison.unpaired
        ]

    @property
    def sentences(self) -> list[str]:
        """What has to be said below the table."""
        made = self.comparison
        if made is None:
            return []
        said = [counts_text(made), mean_text(made), drift_text(made), assumption_text(made)]
        return [text for text in said if text]

    def _several(self) -> bool:
        made = self.comparison
        return made is not None and max(len(made.one.variants), len(made.other.variants)) > 1


def compare_chosen(before: Chosen, after: Chosen) -> Compared:
    """The comparison of two runs of the store."""
    try:
        one, other = _read(before), _read(after)
    except ResultsDamaged as error:
        return Compared(problem=error)
    variants = (_variants(one), _variants(other))
    try:
        made = compare_sides(_side(before, one), _side(after, other), Rules())
    except (UsageError, NothingToDo, ResultsDamaged) as error:
        return Compared(problem=error, variants=variants)
    return Compared(comparison=made, variants=variants)


def compared_data(compared: Compared) -> dict[str, Any]:
    """The same as plain values."""
    if compared.problem is not None:
        problem = compared.problem
        return {"comparison": None, "problem": {"what": problem.what, "why": problem.why}}
    return {"comparison": encode(compared.comparison), "problem": None}


def _read(chosen: Chosen) -> Run:
    return read_run(Path(chosen.run.folder))


def _side(chosen: Chosen, run: Run) -> Side:
    if chosen.variant and chosen.variant not in _variants(run):
        raise UsageError(
            f"{chosen.run.id} has no variant {chosen.variant!r}",
            hint=f"it has {', '.join(_variants(run))}",
        )
    text = f"{chosen.run.id}#{chosen.variant}" if chosen.variant else chosen.run.id
    return Side(text=text, runs=(run,), variant=chosen.variant or None)


def _variants(run: Run) -> tuple[str, ...]:
    return tuple(variant.name for variant in run.study.variants)


def _row(row: CrossRow, several: bool) -> dict[str, Any]:
    ratio, interval = ratio_text(row)
    return {
        "title": row_title(row, variants=several),
        "support": row.support,
        "verdict": row.verdict.value if row.verdict is not None else "",
        "times": (side_time(row.one), side_time(row.other)),
        "speedups": (side_speedup(row.one), side_speedup(row.other)),
        "ratio_value": row.ratio,
        "ratio": ratio,
        "interval": interval,
        "p": p_of_row(row),
        "notes": notes_of_row(row),
    }

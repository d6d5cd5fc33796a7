"""One row per comparison for spreadsheets and data frames: flat columns, plain units.

Text that a spreadsheet would run as a formula is quoted with an apostrophe. An empty cell means
that there is no such number.
"""

from __future__ import annotations

import csv
import math
from io import StringIO
from typing import Final

from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.workload import Workload
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import notes_of
from torchyard.results.run_reader import Run

__all__ = ["Cell", "safe_cell", "to_csv"]

Cell = str | int | float | bool | None

_FORMULA_STARTS: Final = ("=", "+", "-", "@")

_EMPTY: Final = Comparison(
    workload=Workload(suite="", name=""), baseline="", candidate="", verdict=Verdict.FAILED
)
"""Gives the headings, also to a run that has no comparisons."""


def to_csv(run: Run) -> str:
    """The comparisons as comma-separated rows."""
    page = StringIO()
    rows = [_row(run, comparison) for comparison in run.comparisons]
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_row(run, _EMPTY))
    writer.writerows([safe_cell(cell) for cell in row.values()] for row in rows)
    return page.getvalue()


def _row(run: Run, comparison: Comparison) -> dict[str, Cell]:
    workload, estimate = comparison.workload, comparison.estimate
    accuracy, failure = comparison.accuracy, comparison.failure
    interval = estimate.interval if estimate else None
    even = comparison.break_even_interval
    return {
        "run": run.id,
        "suite": workload.suite,
        "workload": workload.name,
        "mode": workload.mode,
        "device": workload.device,
        "batch_size": workload.batch_size or comparison.candidate_metrics.batch_size,
        "optimizer_step": workload.optimizer_step,
        "parameters": " ".join(f"{key}={value}" for key, value in workload.parameters),
        "baseline": comparison.baseline,
        "candidate": comparison.candidate,
        "verdict": comparison.state.value,
        "trusted": comparison.trusted,
        "untrusted": "; ".join(comparison.untrusted),
        "speedup": estimate.speedup if estimate and estimate.launches else None,
        "speedup_low": interval.low if interval else None,
        "speedup_high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "p_value": estimate.p_value if estimate else None,
        "p_adjusted": estimate.p_adjusted if estimate else None,
        "scope": estimate.scope if estimate else None,
        "launches": estimate.launches if estimate else None,
        "pairs": estimate.pairs if estimate else None,
        "pairs_dropped": estimate.pairs_dropped if estimate else None,
        "blocks": comparison.guards.blocks or None,
        "blocks_dirty": comparison.guards.dirty if comparison.guards.blocks else None,
        "dirty_reasons": ", ".join(
            f"{reason} {count}" for reason, count in comparison.guards.reasons
        ),
        "minimum_detectable": estimate.minimum_detectable if estimate else None,
        "time_needed_s": estimate.time_needed_s if estimate else None,
        "break_even_iterations": _or_inf(comparison.break_even_iterations),
        "break_even_low": _or_inf(even.low if even else None),
        "break_even_high": _or_inf(even.high if even else None),
        **_side("baseline", comparison.baseline_metrics),
        **_side("candidate", comparison.candidate_metrics),
        "accuracy": accuracy.status.value if accuracy else None,
        "accuracy_method": accuracy.method if accuracy else None,
        "accuracy_without_reference": accuracy.without_reference if accuracy else None,
        "nondeterminism": accuracy.nondeterminism if accuracy else None,
        "candidate_nondeterminism": accuracy.candidate_nondeterminism if accuracy else None,
        "max_error": accuracy.max_error if accuracy else None,
        "elapsed_s": comparison.elapsed_s,
        "failure": failure.kind if failure else None,
        "failure_phase": failure.phase if failure else None,
        "log": failure.log if failure else None,
        "notes": "; ".join(notes_of(comparison, precision_goal=run.study.budget.precision_goal)),
    }


def _side(side: str, metrics: VariantMetrics) -> dict[str, Cell]:
    breaks = sum(count for _, count in metrics.graph_breaks)
    return {
        f"{side}_time_ns": metrics.time_ns,
        f"{side}_compile_cold_s": metrics.compile_cold_s,
        f"{side}_compile_warm_s": metrics.compile_warm_s,
        f"{side}_peak_memory_bytes": metrics.peak_memory_bytes,
        f"{side}_flops": metrics.flops,
        f"{side}_flops_per_second": metrics.flops_per_second,
        f"{side}_graphs": metrics.graphs,
        f"{side}_graph_breaks": None if metrics.graphs is None else breaks,
        f"{side}_recompiles": metrics.recompiles,
        f"{side}_energy_j": metrics.energy_j,
        f"{side}_torch": metrics.torch_version,
    }


def _or_inf(iterations: float | None) -> Cell:
    """`inf` is what readers of CSV take for infinity; an empty cell would mean unknown."""
    return "inf" if iterations == math.inf else iterations


def safe_cell(cell: Cell) -> Cell:
    """A cell that no spreadsheet runs, and that every reader of CSV takes for what it is."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if isinstance(cell, str):
        text = one_line(cell)
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return cell

"""One row per comparison in the columns of PyTorch's own harness, `benchmarks/dynamo`.

For scripts that read its performance tables: the same names, the same units (milliseconds, seconds,
gigabytes of 10^9 bytes), the same rows of zeros for what failed, was wrong or must not
be trusted. What that table has no column for,
intervals and p-values above all, is in the `csv` format. A counter that Torchyard does not record
has no column.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import Final

from torchyard.core.comparison import WITHOUT_SPEED, Comparison, VariantMetrics
from torchyard.reports.csv_report import Cell, safe_cell
from torchyard.results.run_reader import Run

__all__ = ["COLUMNS", "to_dynamo_csv"]

COLUMNS: Final = (
    "dev",
    "name",
    "batch_size",
    "tag",
    "speedup",
    "abs_latency",
    "compilation_latency",
    "compression_ratio",
    "eager_peak_mem",
    "dynamo_peak_mem",
    "unique_graphs",
    "graph_breaks",
    "unique_graph_breaks",
)
_BYTES_PER_GB: Final = 10**9
_NS_PER_MS: Final = 10**6


def to_dynamo_csv(run: Run) -> str:
    """The comparisons as comma-separated rows."""
    # As in the harness, the tag is there when something must be told apart by it.
    tagged = len({one.candidate for one in run.comparisons}) > 1
    columns = [name for name in COLUMNS if name != "tag" or tagged]
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(columns)
    for comparison in run.comparisons:
        row = _row(comparison)
        writer.writerow([safe_cell(row[name]) for name in columns])
    return page.getvalue()


def _row(comparison: Comparison) -> dict[str, Cell]:
    workload = comparison.workload
    baseline, candidate = comparison.baseline_metrics, comparison.candidate_metrics
    estimate = comparison.estimate
    counts = (
        comparison.state not in WITHOUT_SPEED and estimate is not None and estimate.launches > 0
    )
    time_ns = candidate.time_ns
    return {
        "dev": workload.device,
        "name": _name(comparison),
        "batch_size": workload.batch_size or candidate.batch_size,
        "tag": comparison.candidate,
        "speedup": estimate.speedup if estimate and counts else 0.0,
        "abs_latency": time_ns / _NS_PER_MS if time_ns is not None and counts else 0.0,
        "compilation_latency": candidate.compile_cold_s,
        "compression_ratio": _ratio(baseline, candidate),
        "eager_peak_mem": _gigabytes(baseline),
        "dynamo_peak_mem": _gigabytes(candidate),
        "unique_graphs": candidate.graphs,
        "graph_breaks": None
        if candidate.graphs is None
        else sum(count for _, count in candidate.graph_breaks),
        "unique_graph_breaks": None if candidate.graphs is None else len(candidate.graph_breaks),
    }


def _name(comparison: Comparison) -> str:
    """The workload's label less what has a column of its own."""
    workload = comparison.workload
    text = f"{workload.suite}/{workload.name} {workload.mode}"
    if workload.optimizer_step:
        text += " +step"
    return text + "".join(f" {key}={value}" for key, value in workload.parameters)


def _gigabytes(side: VariantMetrics) -> float | None:
    return None if side.peak_memory_bytes is None else side.peak_memory_bytes / _BYTES_PER_GB


def _ratio(baseline: VariantMetrics, candidate: VariantMetrics) -> float | None:
    if not baseline.peak_memory_bytes or not candidate.peak_memory_bytes:
        return None
    return baseline.peak_memory_bytes / candidate.peak_memory_bytes

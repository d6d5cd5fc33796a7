"""The table of report formats, and the formats for programs: JSON and CSV.

In CSV, text that a spreadsheet would evaluate as a formula is quoted with an apostrophe, and an
empty cell means that there is no such number. The `benchmarks/dynamo` CSV uses the names and units
of PyTorch's own harness (milliseconds, seconds, gigabytes of 10^9 bytes) and its rows of zeros for
failed, wrong or untrusted results; intervals and p-values, for which that table has no column, are
in the `csv` format.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, Final

from torchyard.bench.report.generation import generations
from torchyard.bench.report.page import to_html
from torchyard.bench.report.shown_run import row_command
from torchyard.bench.report.suite_summary import (
    excluded_from_means,
    guard_rows,
    suite_means,
    suite_rows,
    verdict_counts,
    wall_time_record,
)
from torchyard.bench.report.text import to_markdown, to_text
from torchyard.bench.roofline.chart import to_roofline_svg
from torchyard.bench.roofline.report import to_roofline_text
from torchyard.core.comparison import WITHOUT_SPEED, Comparison, VariantMetrics, Verdict
from torchyard.core.records import encode
from torchyard.core.short_names import short_labels
from torchyard.core.study import Workload
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import notes_of
from torchyard.results.run_reader import Run, revision_of_run

SCHEMA: Final = "torchyard.run-report"
SCHEMA_VERSION: Final = 1
"""Incremented when a key changes its meaning or is removed, not when one is added."""


def to_json(run: Run) -> str:
    """Return the run as JSON; numbers that are not finite become null.

    `label` identifies a workload, with the path of a user's file; `title` is what tables show.
    """
    titles = short_labels([one.workload for one in run.comparisons])
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run": {
            "id": run.id,
            "state": run.state,
            "torchyard": run.info.get("torchyard"),
            "command": run.info.get("command"),
            "started": run.info.get("started"),
            "finished": run.info.get("finished"),
            "time_estimate": run.info.get("time_estimate"),
            "revision": revision_of_run(run.info, run.study),
            "notes": run.info.get("notes") or [],
            "torn_lines": run.torn_lines,
            "shared": bool(run.info.get("shared")),
        },
        "summary": {
            "comparisons": len(run.comparisons),
            "passed": sum(one.passed for one in run.comparisons),
            "not_checked": sum(one.not_checked for one in run.comparisons),
            "verdicts": {v.value: count for v, count in verdict_counts(run.comparisons).items()},
            "suites": [
                {
                    "suite": row.suite,
                    "baseline": row.baseline,
                    "candidate": row.candidate,
                    "comparisons": row.total,
                    "passed": row.passed,
                    "not_checked": row.not_checked,
                    "verdicts": {verdict.value: count for verdict, count in row.counts.items()},
                    "geometric_mean": encode(row.mean),
                }
                for row in suite_rows(run.comparisons, confidence=1 - run.study.budget.alpha)
            ],
            "geometric_means": encode(
                suite_means(run.comparisons, confidence=1 - run.study.budget.alpha)
            ),
            "not_in_mean": [
                {"label": one.workload.label, "candidate": one.candidate, "reason": reason}
                for one, reason in excluded_from_means(run.comparisons)
            ],
        },
        "comparisons": [
            {
                "label": comparison.workload.label,
                "title": titles[comparison.workload.label],
                **encode(comparison),
                "estimate": _estimate(comparison),
                "verdict": comparison.state.value,
                "state": comparison.state.value,
                "trusted": comparison.trusted,
                "break_even": _break_even(comparison),
                "repeat_command": row_command(run, number),
            }
            for number, comparison in enumerate(run.comparisons, 1)
        ],
        "generation": [
            row.document()
            for row in generations(run.comparisons, price_per_hour=run.info.get("price_per_hour"))
        ],
        "study": encode(run.study),
        "machine": run.info.get("machine"),
        "guards": dict(guard_rows(run)),
        "wall_time": wall_time_record(run),
        "targets": run.info.get("targets"),
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _estimate(comparison: Comparison) -> dict[str, Any] | None:
    """Return the estimate; the verdict of an untrusted comparison is replaced."""
    record: dict[str, Any] | None = encode(comparison.estimate)
    if record is not None and comparison.state is Verdict.UNTRUSTED:
        record["verdict"] = comparison.state.value
    return record


def _break_even(comparison: Comparison) -> dict[str, Any] | None:
    """Return the iterations after which compilation pays off; `never` represents infinity, which JSON lacks."""
    iterations, interval = comparison.break_even_iterations, comparison.break_even_interval
    if iterations is None:
        return None
    return {
        "iterations": iterations,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "never": iterations == math.inf,
        "maybe_never": interval is None or interval.high == math.inf,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


Cell = str | int | float | bool | None

_FORMULA_STARTS: Final = ("=", "+", "-", "@")

_EMPTY: Final = Comparison(
    workload=Workload(suite="", name=""), baseline="", candidate="", verdict=Verdict.FAILED
)
"""Provides the header row, also for a run without comparisons."""


def to_csv(run: Run) -> str:
    """Return the comparisons as CSV."""
    page = StringIO()
    rows = [_csv_row(run, comparison) for comparison in run.comparisons]
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_csv_row(run, _EMPTY))
    writer.writerows([safe_cell(cell) for cell in row.values()] for row in rows)
    return page.getvalue()


def _csv_row(run: Run, comparison: Comparison) -> dict[str, Cell]:
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
        "eval_mode": workload.eval_mode,
        "ranks": workload.ranks,
        "nodes": workload.nodes,
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
    """Return `inf` for infinity, which CSV readers parse; an empty cell would mean unknown."""
    return "inf" if iterations == math.inf else iterations


def safe_cell(cell: Cell) -> Cell:
    """Return a cell that no spreadsheet evaluates as a formula and every CSV reader parses."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if isinstance(cell, str):
        text = one_line(cell)
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return cell


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
    """Return the comparisons as CSV with the columns of PyTorch's benchmarks/dynamo."""
    # As in the harness, the column `tag` is present only with several candidates.
    tagged = len({one.candidate for one in run.comparisons}) > 1
    columns = [name for name in COLUMNS if name != "tag" or tagged]
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(columns)
    for comparison in run.comparisons:
        row = _dynamo_row(comparison)
        writer.writerow([safe_cell(row[name]) for name in columns])
    return page.getvalue()


def _dynamo_row(comparison: Comparison) -> dict[str, Cell]:
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
    """Return the label of the workload without the parts that have their own column."""
    workload = comparison.workload
    text = f"{workload.suite}/{workload.name} {workload.mode}"
    if workload.optimizer_step:
        text += " +step"
    if workload.eval_mode:
        text += " eval-mode"
    if workload.ranks > 1:
        text += f" ranks={workload.ranks}"
    if workload.nodes > 1:
        text += f" nodes={workload.nodes}"
    return text + "".join(f" {key}={value}" for key, value in workload.parameters)


def _gigabytes(side: VariantMetrics) -> float | None:
    return None if side.peak_memory_bytes is None else side.peak_memory_bytes / _BYTES_PER_GB


def _ratio(baseline: VariantMetrics, candidate: VariantMetrics) -> float | None:
    if not baseline.peak_memory_bytes or not candidate.peak_memory_bytes:
        return None
    return baseline.peak_memory_bytes / candidate.peak_memory_bytes


FORMATS: Final[Mapping[str, Callable[[Run], str]]] = {
    "terminal": to_text,
    "markdown": to_markdown,
    "csv": to_csv,
    "dynamo-csv": to_dynamo_csv,
    "json": to_json,
    "html": to_html,
    "roofline": to_roofline_text,
    "roofline-svg": to_roofline_svg,
}

"""The run as one JSON document for other programs. Says what was found, not how it looks."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.reports.guard_text import guard_rows
from torchyard.reports.suite_means import left_out, suite_means
from torchyard.reports.suite_rows import suite_rows
from torchyard.reports.summary import verdict_counts
from torchyard.results.revision import revision_of_run
from torchyard.results.run_reader import Run

__all__ = ["SCHEMA", "SCHEMA_VERSION", "to_json"]

SCHEMA: Final = "torchyard.run-report"
SCHEMA_VERSION: Final = 1
"""Raised when a key changes its meaning or goes away; added keys do not raise it."""


def to_json(run: Run) -> str:
    """Valid JSON: numbers that are none become null."""
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
                for one, reason in left_out(run.comparisons)
            ],
        },
        "comparisons": [
            {
                "label": comparison.workload.label,
                **encode(comparison),
                "estimate": _estimate(comparison),
                "verdict": comparison.state.value,
                "state": comparison.state.value,
                "trusted": comparison.trusted,
                "break_even": _break_even(comparison),
            }
            for comparison in run.comparisons
        ],
        "study": encode(run.study),
        "machine": run.info.get("machine"),
        "guards": dict(guard_rows(run)),
        "targets": run.info.get("targets"),
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _estimate(comparison: Comparison) -> dict[str, Any] | None:
    """The numbers; a verdict on times that must not be trusted is not among them."""
    record: dict[str, Any] | None = encode(comparison.estimate)
    if record is not None and comparison.state is Verdict.UNTRUSTED:
        record["verdict"] = comparison.state.value
    return record


def _break_even(comparison: Comparison) -> dict[str, Any] | None:
    """Iterations that pay for compiling. Infinity is no number in JSON: `never` says it."""
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

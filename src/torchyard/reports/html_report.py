"""The run as one HTML file that needs nothing else: no network, no other file.

Everything from outside is stripped of controls and escaped by the template engine, and the page
forbids itself every script but its own, so that a name or a log can only ever be read. Charts are
in `charts.py` and `templates/charts.html.j2`. Loads jinja2 when a page is made.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.units import format_bytes, format_flops
from torchyard.reports.charts import numbers_of, speedup_axis
from torchyard.reports.fact_rows import fact_rows
from torchyard.reports.guard_text import blocks_text, guard_rows, temperature_text
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.launch_effects import blocks_by_workload, effects_of
from torchyard.reports.method_text import method_sentences
from torchyard.reports.plain_text import one_line, plain_lines
from torchyard.reports.suite_means import left_out, suite_means
from torchyard.reports.summary import verdict_counts
from torchyard.reports.wording import (
    ABSENT,
    MARKS,
    accuracy_text,
    failure_text,
    interval_text,
    notes_of,
    number_text,
    p_text,
    pairs_text,
    time_text,
    title_of,
)
from torchyard.results.run_reader import Run

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["to_html"]

_STATES = {
    "running": "This run is still going. What follows is what it has so far.",
    "interrupted": "This run was interrupted. What follows is what it had by then.",
    "failed": "This run failed. What follows is what it had by then.",
}


def to_html(run: Run) -> str:
    """The whole page."""
    blocks = blocks_by_workload(run)
    style, script = asset("report.css"), asset("report.js")
    budget = run.study.budget
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=one_line(run.study.name),
            run=run,
            warning=_warning(run),
            means=suite_means(run.comparisons, confidence=1 - budget.alpha),
            counts=verdict_counts(run.comparisons),
            left_out=left_out(run.comparisons),
            confidence=f"{100 * (1 - budget.alpha):g}%",
            margin=budget.margin,
            axis=speedup_axis([1.0, *chain.from_iterable(map(numbers_of, run.comparisons))]),
            rows=[
                _row(comparison, index, blocks, budget.precision_goal)
                for index, comparison in enumerate(run.comparisons, start=1)
            ],
            method=method_sentences(run.study),
            command=shlex.join(str(word) for word in run.info.get("command") or ()),
            machine=fact_rows(run.info.get("machine") or {}),
            guards=guard_rows(run),
            targets=[
                (one_line(str(name)), fact_rows(facts))
                for name, facts in (run.info.get("targets") or {}).items()
            ],
            style=style,
            script=script,
            style_hash=fingerprint(style),
            script_hash=fingerprint(script),
        )
    )


def _environment() -> Environment:
    environment = template_engine()
    environment.filters["number"] = number_text
    environment.globals["mark"] = lambda verdict: MARKS[verdict]
    environment.globals["title_of"] = title_of
    return environment


def _warning(run: Run) -> str:
    text = _STATES.get(run.state, "")
    if run.torn_lines:
        noun = "record was" if run.torn_lines == 1 else "records were"
        text += f" {run.torn_lines} {noun} cut off by a kill and left out."
    return text.strip()


def _row(
    comparison: Comparison,
    index: int,
    blocks: Mapping[str, Sequence[Block]],
    precision_goal: float,
) -> dict[str, Any]:
    """What the template shows of one comparison, as text and numbers."""
    estimate = comparison.estimate if _has_number(comparison) else None
    effects = effects_of(comparison, blocks)
    failure = comparison.failure
    p_value = estimate and (
        estimate.p_value if estimate.p_adjusted is None else estimate.p_adjusted
    )
    return {
        "anchor": f"comparison-{index}",
        "comparison": comparison,
        "estimate": estimate,
        "label": one_line(comparison.workload.label),
        "title": title_of(comparison),
        "verdict": comparison.verdict.value,
        "verdict_rank": list(Verdict).index(comparison.verdict),
        "mark": MARKS[comparison.verdict],
        "speedup": f"{number_text(estimate.speedup)}x" if estimate else ABSENT,
        "interval": interval_text(estimate) if estimate else "",
        "p": p_text(estimate),
        "p_value": p_value,
        "pairs": pairs_text(estimate),
        "baseline_time": time_text(comparison.baseline_metrics),
        "candidate_time": time_text(comparison.candidate_metrics),
        "notes": notes_of(comparison, precision_goal=precision_goal),
        "plotted": bool(numbers_of(comparison)),
        "axis": speedup_axis([*numbers_of(comparison), *effects.speedups]),
        "effects": effects,
        "blocks": blocks_text(effects.guards) if effects.guards.blocks else "",
        "temperature": temperature_text(effects.guards),
        "accuracy": accuracy_text(comparison.accuracy),
        "sides": _side_rows(comparison.baseline_metrics, comparison.candidate_metrics),
        "failure": failure_text(failure) if failure else "",
        "log_tail": plain_lines(failure.log_tail) if failure else "",
    }


def _has_number(comparison: Comparison) -> bool:
    return comparison.estimate is not None and comparison.estimate.launches > 0


def _side_rows(*sides: VariantMetrics) -> list[tuple[str, list[str]]]:
    """What is known of both sides besides their speed: one row per thing, one cell per side."""
    return [
        ("time of one iteration", [time_text(side) for side in sides]),
        ("compile, cold cache", [_seconds(side, "compile_cold_s") for side in sides]),
        ("compile, warm cache", [_seconds(side, "compile_warm_s") for side in sides]),
        ("peak memory", [_memory(side) for side in sides]),
        ("operations", [_operations(side) for side in sides]),
        ("graphs", [_said(side, "graphs", side.graphs) for side in sides]),
        ("graph breaks", [_graph_breaks(side) for side in sides]),
        ("torch", [side.torch_version or ABSENT for side in sides]),
    ]


def _said(side: VariantMetrics, name: str, value: object) -> str:
    if value is not None:
        return str(value)
    reason = dict(side.unavailable).get(name)
    return f"unavailable: {one_line(reason)}" if reason else ABSENT


def _seconds(side: VariantMetrics, name: str) -> str:
    seconds = getattr(side, name)
    return _said(side, name, None if seconds is None else f"{seconds:.3g} s")


def _memory(side: VariantMetrics) -> str:
    if side.peak_memory_bytes is None:
        return _said(side, "peak_memory_bytes", None)
    method = f" ({one_line(side.memory_method)})" if side.memory_method else ""
    return format_bytes(side.peak_memory_bytes) + method


def _operations(side: VariantMetrics) -> str:
    if side.flops is None:
        return _said(side, "flops", None)
    rate = side.flops_per_second
    speed = f", {format_flops(rate, per_second=True)}" if rate is not None else ""
    return format_flops(side.flops) + speed


def _graph_breaks(side: VariantMetrics) -> str:
    breaks = [f"{count} × {one_line(reason)}" for reason, count in side.graph_breaks]
    if breaks:
        return "; ".join(breaks)
    return "none" if side.graphs is not None else _said(side, "graph_breaks", None)

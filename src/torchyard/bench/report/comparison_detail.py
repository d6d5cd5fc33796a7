"""One comparison in the HTML report: its row, details and charts.

Launch effects come from the same pairs as the estimate. `templates/report.html.j2` defines the
layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from torchyard.bench.report.block_charts import (
    ChartData,
    disturbance_chart,
    in_order,
    launch_chart,
    sample_chart,
)
from torchyard.bench.report.suite_summary import blocks_text, temperature_text
from torchyard.core.block import Block
from torchyard.core.comparison import (
    WITHOUT_SPEED,
    Comparison,
    Estimate,
    GuardSummary,
    VariantMetrics,
    Verdict,
)
from torchyard.core.units import (
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_flops,
)
from torchyard.presentation.chart_layout import numbers_of
from torchyard.presentation.safe_text import one_line, plain_lines
from torchyard.presentation.wording import (
    ABSENT,
    MARKS,
    accuracy_text,
    break_even_text,
    failure_text,
    interval_text,
    notes_of,
    number_text,
    p_text,
    pairs_text,
    time_text,
    title_of,
)
from torchyard.stats.pairs import pair_blocks, summarize_guards


@dataclass(frozen=True, kw_only=True)
class LaunchEffects:
    """Speedup of each launch, and pairs dropped by reason."""

    speedups: tuple[float, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    guards: GuardSummary = field(default_factory=GuardSummary)
    """Computed from the blocks, because old runs did not record it."""


def effects_of(comparison: Comparison, blocks: Mapping[str, Sequence[Block]]) -> LaunchEffects:
    """Return the launch effects of a comparison from the blocks of its two variants."""
    own_blocks = blocks.get(comparison.workload.label, ())
    pairs = pair_blocks(own_blocks, comparison.baseline, comparison.candidate)
    return LaunchEffects(
        speedups=tuple(math.exp(median(launch)) for launch in pairs.medians if launch),
        dropped=tuple((one_line(reason), count) for reason, count in pairs.reasons),
        guards=summarize_guards(own_blocks, comparison.baseline, comparison.candidate),
    )


def comparison_part(
    comparison: Comparison,
    index: int,
    blocks: Mapping[str, Sequence[Block]],
    precision_goal: float,
) -> dict[str, Any]:
    """Return the template variables of one comparison."""
    estimate = comparison.estimate
    estimate = estimate if estimate is not None and estimate.launches else None
    counts = comparison.state not in WITHOUT_SPEED
    shown = "{}".format if counts else "({})".format
    effects = effects_of(comparison, blocks)
    failure = comparison.failure
    notes = notes_of(comparison, precision_goal=precision_goal)
    cost = _cost_cells(comparison)
    p_value = None
    if estimate is not None and counts:
        p_value = estimate.p_value if estimate.p_adjusted is None else estimate.p_adjusted
    return {
        "anchor": f"comparison-{index}",
        "comparison": comparison,
        "estimate": estimate,
        "label": one_line(comparison.workload.label),
        "title": title_of(comparison),
        "suite": one_line(comparison.workload.suite),
        "candidate": one_line(comparison.candidate),
        "verdict": comparison.state.value,
        "verdict_rank": list(Verdict).index(comparison.state),
        "mark": MARKS[comparison.state],
        "speedup": shown(f"{number_text(estimate.speedup)}x") if estimate else ABSENT,
        "interval": shown(interval_text(estimate)) if estimate else "",
        "p": p_text(comparison),
        "p_value": p_value,
        "pairs": pairs_text(estimate),
        "baseline_time": time_text(comparison.baseline_metrics),
        "candidate_time": time_text(comparison.candidate_metrics),
        "notes": notes,
        # Graph breaks have a column.
        "row_notes": [
            n for n in notes if n != format_count(cost["break_count"] or 0, "graph break")
        ],
        **cost,
        "plotted": bool(numbers_of(comparison)),
        "effects": effects,
        "blocks": blocks_text(effects.guards) if effects.guards.blocks else "",
        "temperature": temperature_text(effects.guards),
        "accuracy": accuracy_text(comparison.accuracy),
        "sides": [
            *_metric_rows(comparison.baseline_metrics, comparison.candidate_metrics),
            *_break_even_rows(comparison),
        ],
        "failure": failure_text(failure) if failure else "",
        "log_tail": plain_lines(failure.log_tail) if failure else "",
        "charts": _charts(comparison, estimate, blocks.get(comparison.workload.label, ())),
    }


def _cost_cells(comparison: Comparison) -> dict[str, Any]:
    """Return compile time, peak memory and graph breaks of the candidate, as text and as numbers."""
    metrics, baseline = comparison.candidate_metrics, comparison.baseline_metrics
    compile_s, memory_bytes = metrics.compile_cold_s, metrics.peak_memory_bytes
    breaks = metrics.graph_break_count
    ratio = None
    if memory_bytes is not None and baseline.peak_memory_bytes:
        ratio = memory_bytes / baseline.peak_memory_bytes
    return {
        "compile_s": compile_s,
        "compile_time": ABSENT if compile_s is None else f"{compile_s:.3g} s",
        "memory_bytes": memory_bytes,
        "memory": ABSENT if memory_bytes is None else format_bytes(memory_bytes),
        "memory_ratio": "" if ratio is None else f"{ratio:.2f}x",
        "break_count": breaks,
        "breaks": ABSENT if breaks is None else str(breaks),
    }


def _charts(
    comparison: Comparison, estimate: Estimate | None, blocks: Sequence[Block]
) -> list[ChartData]:
    own_blocks = in_order(blocks, comparison.baseline, comparison.candidate)
    if not own_blocks:
        return []
    charts = [sample_chart(own_blocks, comparison.baseline)]
    pairs = pair_blocks(own_blocks, comparison.baseline, comparison.candidate)
    if estimate is not None and pairs.pairs:
        # A speedup that does not count is shown without an interval.
        counts = bool(numbers_of(comparison))
        interval = estimate.interval if counts else None
        charts.append(
            launch_chart(
                pairs.medians,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                speedup=estimate.speedup if counts else None,
            )
        )
    if any(block.dirty for block in own_blocks):
        charts.append(disturbance_chart(own_blocks, comparison.baseline))
    return charts


def _metric_rows(*variants: VariantMetrics) -> list[tuple[str, list[str]]]:
    """Return the metrics of both variants: one row per metric, one cell per variant."""
    rows = [
        ("batch size", [_shown(variant, "batch_size", variant.batch_size) for variant in variants]),
        ("loss", [one_line(variant.loss) or ABSENT for variant in variants]),
        ("iteration time", [time_text(variant) for variant in variants]),
        ("CPU time", [_duration(variant.cpu_time_ns) for variant in variants]),
        ("compile time, cold cache", [_seconds(variant, "compile_cold_s") for variant in variants]),
        ("compile time, warm cache", [_seconds(variant, "compile_warm_s") for variant in variants]),
        ("peak memory", [_memory(variant) for variant in variants]),
        ("floating-point operations", [_operations(variant) for variant in variants]),
        ("graphs", [_shown(variant, "graphs", variant.graphs) for variant in variants]),
        ("graph breaks", [_graph_breaks(variant) for variant in variants]),
        ("recompilations", [_recompiles(variant) for variant in variants]),
        ("energy per iteration", [_energy(variant) for variant in variants]),
        ("torch", [variant.torch_version or ABSENT for variant in variants]),
    ]
    return [(name, cells) for name, cells in rows if set(cells) != {ABSENT}]


def _shown(metrics: VariantMetrics, name: str, value: object) -> str:
    if value is not None:
        return str(value)
    reason = dict(metrics.unavailable).get(name)
    return f"unavailable: {one_line(reason)}" if reason else ABSENT


def _seconds(metrics: VariantMetrics, name: str) -> str:
    seconds = getattr(metrics, name)
    return _shown(metrics, name, None if seconds is None else f"{seconds:.3g} s")


def _duration(time_ns: float | None) -> str:
    return ABSENT if time_ns is None else format_duration(time_ns)


def _memory(metrics: VariantMetrics) -> str:
    if metrics.peak_memory_bytes is None:
        return _shown(metrics, "peak_memory_bytes", None)
    method = f" ({one_line(metrics.memory_method)})" if metrics.memory_method else ""
    return format_bytes(metrics.peak_memory_bytes) + method


def _operations(metrics: VariantMetrics) -> str:
    if metrics.flops is None:
        return _shown(metrics, "flops", None)
    rate = metrics.flops_per_second
    speed = f", {format_flops(rate, per_second=True)}" if rate is not None else ""
    return format_flops(metrics.flops) + speed


def _graph_breaks(metrics: VariantMetrics) -> str:
    breaks = [f"{count} × {one_line(reason)}" for reason, count in metrics.graph_breaks]
    if breaks:
        return "; ".join(breaks)
    return "none" if metrics.graphs is not None else _shown(metrics, "graph_breaks", None)


def _recompiles(metrics: VariantMetrics) -> str:
    if not metrics.recompiles:
        return _shown(metrics, "recompiles", metrics.recompiles)
    reasons = [f"{count} × {one_line(reason)}" for reason, count in metrics.recompile_reasons]
    return f"{metrics.recompiles}: {'; '.join(reasons)}" if reasons else str(metrics.recompiles)


def _energy(metrics: VariantMetrics) -> str:
    return _shown(
        metrics, "energy_j", None if metrics.energy_j is None else format_energy(metrics.energy_j)
    )


def _break_even_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    if comparison.break_even_iterations is None:
        return []
    return [("compiling pays off after", [ABSENT, break_even_text(comparison)])]

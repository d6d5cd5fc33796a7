"""What the HTML report shows of one comparison: its row, details and charts.

Launch effects come from the same pairs as the estimate. `templates/report.html.j2` defines the
layout.
"""

from __future__ import annotations

import math
from collections import defaultdict
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
from torchyard.core.comparison import Comparison, Estimate, GuardSummary, VariantMetrics, Verdict
from torchyard.core.units import format_bytes, format_energy, format_flops
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
from torchyard.results.run_reader import Run
from torchyard.stats.pairs import pair_blocks, summarize_guards


@dataclass(frozen=True, kw_only=True)
class LaunchEffects:
    """The speedup of each launch, and how often each guard dropped a pair."""

    speedups: tuple[float, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    guards: GuardSummary = field(default_factory=GuardSummary)
    """From the blocks, so that runs older than the count have it, too."""


def blocks_by_workload(run: Run) -> dict[str, list[Block]]:
    """One pass over the samples: every block by its workload's label."""
    found: dict[str, list[Block]] = defaultdict(list)
    for label, block in run.blocks():
        if block.samples_ns and block.median_ns > 0:
            found[label].append(block)
    return found


def effects_of(comparison: Comparison, blocks: Mapping[str, Sequence[Block]]) -> LaunchEffects:
    """The comparison's launches, from the blocks of its two variants."""
    own = blocks.get(comparison.workload.label, ())
    pairs = pair_blocks(own, comparison.baseline, comparison.candidate)
    return LaunchEffects(
        speedups=tuple(math.exp(median(launch)) for launch in pairs.medians if launch),
        dropped=tuple((one_line(reason), count) for reason, count in pairs.reasons),
        guards=summarize_guards(own, comparison.baseline, comparison.candidate),
    )


def comparison_part(
    comparison: Comparison,
    index: int,
    blocks: Mapping[str, Sequence[Block]],
    precision_goal: float,
) -> dict[str, Any]:
    """Everything the template asks for."""
    estimate = comparison.estimate if _has_number(comparison) else None
    shown = "{}".format if comparison.trusted else "({})".format
    effects = effects_of(comparison, blocks)
    failure = comparison.failure
    p_value = None
    if estimate is not None and comparison.trusted:
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
        "notes": notes_of(comparison, precision_goal=precision_goal),
        "plotted": bool(numbers_of(comparison)),
        "effects": effects,
        "blocks": blocks_text(effects.guards) if effects.guards.blocks else "",
        "temperature": temperature_text(effects.guards),
        "accuracy": accuracy_text(comparison.accuracy),
        "sides": [
            *_side_rows(comparison.baseline_metrics, comparison.candidate_metrics),
            *_break_even_rows(comparison),
        ],
        "failure": failure_text(failure) if failure else "",
        "log_tail": plain_lines(failure.log_tail) if failure else "",
        "charts": _charts(comparison, estimate, blocks.get(comparison.workload.label, ())),
    }


def _has_number(comparison: Comparison) -> bool:
    return comparison.estimate is not None and comparison.estimate.launches > 0


def _charts(
    comparison: Comparison, estimate: Estimate | None, blocks: Sequence[Block]
) -> list[ChartData]:
    own = in_order(blocks, comparison.baseline, comparison.candidate)
    if not own:
        return []
    charts = [sample_chart(own, comparison.baseline)]
    pairs = pair_blocks(own, comparison.baseline, comparison.candidate)
    if estimate is not None and pairs.pairs:
        # A speed that does not count has no interval to show.
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
    if any(block.dirty for block in own):
        charts.append(disturbance_chart(own, comparison.baseline))
    return charts


def _side_rows(*sides: VariantMetrics) -> list[tuple[str, list[str]]]:
    """What is known of both sides besides their speed: one row per thing, one cell per side."""
    batches = [_said(side, "batch_size", side.batch_size) for side in sides]
    return [
        *([("batch size", batches)] if any(side.batch_size for side in sides) else []),
        *(
            [("loss", [one_line(side.loss) for side in sides])]
            if any(s.loss for s in sides)
            else []
        ),
        ("time of one iteration", [time_text(side) for side in sides]),
        ("compile, cold cache", [_seconds(side, "compile_cold_s") for side in sides]),
        ("compile, warm cache", [_seconds(side, "compile_warm_s") for side in sides]),
        ("peak memory", [_memory(side) for side in sides]),
        ("operations", [_operations(side) for side in sides]),
        ("graphs", [_said(side, "graphs", side.graphs) for side in sides]),
        ("graph breaks", [_graph_breaks(side) for side in sides]),
        ("compiled again", [_recompiles(side) for side in sides]),
        ("energy of one iteration", [_energy(side) for side in sides]),
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


def _recompiles(side: VariantMetrics) -> str:
    if not side.recompiles:
        return _said(side, "recompiles", side.recompiles)
    reasons = [f"{count} × {one_line(reason)}" for reason, count in side.recompile_reasons]
    return f"{side.recompiles}: {'; '.join(reasons)}" if reasons else str(side.recompiles)


def _energy(side: VariantMetrics) -> str:
    return _said(side, "energy_j", None if side.energy_j is None else format_energy(side.energy_j))


def _break_even_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    if comparison.break_even_iterations is None:
        return []
    return [("compiling pays off after", [ABSENT, break_even_text(comparison)])]

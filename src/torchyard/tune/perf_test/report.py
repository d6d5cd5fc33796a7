"""Format a performance test as text: rates and shares side by side, then the operators."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from torchyard.core.short_names import with_short_workloads
from torchyard.core.units import format_duration, format_flops
from torchyard.presentation.safe_text import aligned, one_line, shortened
from torchyard.tune.perf_test.measurement import OperatorRow, OperatorTable, PerfTest

_MOST_OPERATORS = 12
_NUMBERS_WIDTH = 58
"""Width of the columns of an operator without its name, and of those of the GPU."""
_GPU_WIDTH = 31
_MIN_NAME_WIDTH = 20


def perf_text(test: PerfTest, *, width: int = 120) -> str:
    """Format a performance test as text; names of operators are shortened to the width."""
    test = replace(test, comparisons=with_short_workloads(test.comparisons))
    parts = [_rates(test)]
    parts += ["\n".join(textwrap.fill(line, width) for line in _verdicts(test))]
    parts += ["\n".join(f"{name}: {text}" for name, text in test.settings)]
    parts += [_operators(table, width) for table in test.tables]
    return "\n\n".join(parts) + "\n"


def _rates(test: PerfTest) -> str:
    rows: list[Sequence[str]] = [("workload", "settings", "time", "rate", "of peak")]
    for comparison in test.comparisons:
        for name, metrics in (
            (comparison.baseline, comparison.baseline_metrics),
            (comparison.candidate, comparison.candidate_metrics),
        ):
            time = "" if metrics.time_ns is None else format_duration(metrics.time_ns)
            rate = metrics.flops_per_second
            shown = "" if rate is None else format_flops(rate, per_second=True)
            share = f"{rate / test.peak.flops_per_second:.0%}" if rate and test.peak else ""
            rows.append((comparison.workload.label, name, time, shown, share))
    text = aligned(rows)
    if test.peak is None:
        return f"{text}\n\nshare of peak unavailable: {one_line(test.peak_why_not)}"
    peak = format_flops(test.peak.flops_per_second, per_second=True)
    return f"{text}\n\npeak of this machine: {peak}, measured {test.peak.measured}"


def _verdicts(test: PerfTest) -> list[str]:
    lines = []
    for one in test.comparisons:
        if one.failure is not None:
            lines.append(f"{one.workload.label}: {one.candidate} failed: {one.failure.message}")
        elif one.estimate is not None:
            interval = one.estimate.interval
            interval_text = (
                "" if interval is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
            )
            number = f"{one.estimate.speedup:.3f}x{interval_text}"
            why = f" ({'; '.join(one.untrusted)})" if one.untrusted else ""
            lines.append(
                f"{one.workload.label}: {one.candidate} is "
                f"{number if one.trusted else f'({number})'} vs {one.baseline}: {one.state}{why}"
            )
    return [one_line(line) for line in lines]


def _operators(table: OperatorTable, width: int) -> str:
    """Return the columns of torch.profiler's table, and the total below it."""
    title = f"{table.workload}, {table.variant}: operators of {table.iterations} iterations"
    if table.why_not:
        return (
            f"{table.workload}, {table.variant}: operators unavailable: {one_line(table.why_not)}"
        )
    iterations = max(1, table.iterations)
    total = f"self CPU time total: {format_duration(table.total_ns)}"
    total += f" ({format_duration(table.total_ns / iterations)} per iteration)"
    if table.kernels:
        return f"{title}\n{_with_gpu_times(table, width)}\n{total}\n\n{_kernels(table, width)}"
    rows = [
        (_name(row, width - _NUMBERS_WIDTH), *_cpu(row, table))
        for row in table.operators[:_MOST_OPERATORS]
    ]
    return f"{title}\n{aligned([('operator', *_CPU_HEADS), *rows])}\n{total}"


_CPU_HEADS = ("calls", "self CPU", "self %", "CPU total", "total %", "CPU avg")


def _with_gpu_times(table: OperatorTable, width: int) -> str:
    """Return operators by GPU time of their kernels, then by self CPU time."""
    head = ("operator", *_CPU_HEADS, "self GPU", "self %", "GPU total")
    ordered = sorted(table.operators, key=lambda row: (-row.self_device_cost, -row.self_cost))
    rows = [
        (
            _name(row, width - _NUMBERS_WIDTH - _GPU_WIDTH),
            *_cpu(row, table),
            *_gpu(row, table),
            format_duration(row.total_device_cost),
        )
        for row in ordered[:_MOST_OPERATORS]
    ]
    return aligned([head, *rows])


def _kernels(table: OperatorTable, width: int) -> str:
    ordered = sorted(table.kernels, key=lambda row: -row.self_device_cost)
    rows = [
        (_name(row, width - _GPU_WIDTH), str(row.calls), *_gpu(row, table))
        for row in ordered[:_MOST_OPERATORS]
    ]
    return aligned([("kernel", "calls", "GPU", "share"), *rows])


def _name(row: OperatorRow, width: int) -> str:
    return shortened(one_line(row.name), max(_MIN_NAME_WIDTH, width))


def _cpu(row: OperatorRow, table: OperatorTable) -> tuple[str, ...]:
    """Return the cells of `_CPU_HEADS`; shares are those of the total self CPU time."""
    whole = table.total_ns or 1.0
    return (
        str(row.calls),
        format_duration(row.self_cost),
        f"{row.self_cost / whole:.1%}",
        format_duration(row.total_cost),
        f"{row.total_cost / whole:.1%}",
        format_duration(row.total_cost / max(1, row.calls)),
    )


def _gpu(row: OperatorRow, table: OperatorTable) -> tuple[str, str]:
    spent = row.self_device_cost
    return format_duration(spent), f"{spent / (table.device_ns or 1.0):.1%}"

"""Wording of results that all formats share: verdicts, speedups, intervals, failures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from torchyard.core.comparison import (
    UNTRUSTED,
    WITHOUT_SPEED,
    WRONG_RESULTS,
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import COMMAND_SUITE
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import one_line

ABSENT: Final = "–"

MARKS: Final[dict[Verdict, str]] = {
    Verdict.FASTER: "▲",
    Verdict.SLOWER: "▼",
    Verdict.SAME: "=",
    Verdict.UNDECIDED: "?",
    Verdict.UNTRUSTED: "!",
    Verdict.WRONG: "✗",
    Verdict.FAILED: "✗",
}
_ONE_LAUNCH: Final = "a single launch is valid for its own processes only"
_SMALLEST_P: Final = 0.001
_MAX_IN_UNIT: Final = 90


def workload_text(comparison: Comparison) -> str:
    """Return the label of the workload with the batch size used, even if the suite chose it."""
    workload = comparison.workload
    if workload.suite == COMMAND_SUITE:
        return "whole program"
    sizes = (comparison.candidate_metrics.batch_size, comparison.baseline_metrics.batch_size)
    if workload.batch_size is None and any(sizes):
        workload = replace(workload, batch_size=sizes[0] or sizes[1])
    return one_line(workload.label)


def title_of(comparison: Comparison) -> str:
    """Return the title of a comparison: workload and candidate."""
    return f"{workload_text(comparison)} · {one_line(comparison.candidate)}"


def verdict_text(verdict: Verdict) -> str:
    """Return the verdict with its mark, so that it is readable without color."""
    return f"{MARKS[verdict]} {verdict.value}"


def number_text(number: float | None) -> str:
    """Return a number with three decimals, or one if it is large."""
    if number is None or not math.isfinite(number):
        return "unknown"
    return f"{number:.3f}" if abs(number) < 100 else f"{number:.1f}"  # noqa: PLR2004


def interval_text(estimate: Estimate) -> str:
    """Return for example `[1.341, 1.363]`, or `no interval`."""
    if estimate.interval is None:
        return "no interval"
    return f"[{number_text(estimate.interval.low)}, {number_text(estimate.interval.high)}]"


def speedup_text(comparison: Comparison) -> str:
    """Return for example `1.352x [1.341, 1.363]`, in parentheses if it does not count."""
    estimate = comparison.estimate
    if estimate is None or not estimate.launches:
        return ABSENT
    text = f"{number_text(estimate.speedup)}x {interval_text(estimate)}"
    return f"({text})" if comparison.state in WITHOUT_SPEED else text


def time_text(metrics: VariantMetrics) -> str:
    """Return the iteration time; the ratio of both times of a row is its speedup."""
    return ABSENT if metrics.time_ns is None else format_duration(metrics.time_ns)


def p_text(comparison: Comparison) -> str:
    """Return the p-value, adjusted for the number of comparisons; none if the speed does not count."""
    estimate = comparison.estimate
    if estimate is None or comparison.state in WITHOUT_SPEED:
        return ABSENT
    return p_value_text(estimate.p_value if estimate.p_adjusted is None else estimate.p_adjusted)


def p_value_text(p_value: float | None) -> str:
    """Format a p-value: `0.012`, `<0.001`."""
    if p_value is None or not math.isfinite(p_value):
        return ABSENT
    return f"<{_SMALLEST_P}" if p_value < _SMALLEST_P else f"{p_value:.3f}"


def pairs_text(estimate: Estimate | None) -> str:
    """Return launches and pairs of the estimate: `12/240`."""
    return ABSENT if estimate is None else f"{estimate.launches}/{estimate.pairs}"


def about_duration(duration_s: float) -> str:
    """Return a rounded duration: `45 s`, `3 m`, `2.5 h`."""
    if not math.isfinite(duration_s):
        return "unknown"
    if duration_s < _MAX_IN_UNIT:
        return f"{math.ceil(duration_s)} s"
    minutes = math.ceil(duration_s / 60)
    return f"{minutes} m" if minutes < _MAX_IN_UNIT else f"{duration_s / 3600:.1f} h"


def rough_duration(duration_s: float) -> str:
    """Return an estimated duration with few digits: `45 s`, `3 min`, `2.5 h`."""
    if not math.isfinite(duration_s):
        return "unknown"
    if duration_s < _MAX_IN_UNIT:
        return f"{max(1, round(duration_s))} s"
    if duration_s < _MAX_IN_UNIT * 60:
        return f"{round(duration_s / 60)} min"
    hours = duration_s / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{round(hours)} h"  # noqa: PLR2004


_LEAST_DATA_WAIT: Final = 0.1
_BOUND_BY_DATA: Final = 0.5
"""Shares of the time from which waiting for data is reported, and from which it is the bottleneck."""


def data_wait_text(share: float, whole: str) -> str:
    """Return which share of the whole is spent waiting for data loaders; nothing if it is small."""
    if share < _LEAST_DATA_WAIT:
        return ""
    text = f"{format_percent(min(1.0, share))} of {whole} is spent waiting for data (DataLoader)"
    if share >= _BOUND_BY_DATA:
        text += ": the program is bound by data loading, so a faster model hardly helps"
    return text


_CHECKED: Final = {
    AccuracyStatus.PASS: "pass",
    AccuracyStatus.LESS_ACCURATE: "less accurate",
    AccuracyStatus.FAIL: "wrong",
}
_NOT_CHECKED: Final = {
    AccuracyStatus.UNCHECKED: "",
    AccuracyStatus.RANDOM: "the workload uses random numbers, which the candidate generates differently",
    AccuracyStatus.NONDETERMINISTIC: "two runs of the baseline differ",
}


def accuracy_text(accuracy: Accuracy | None) -> str:
    """Describe the result of the accuracy check."""
    if accuracy is None or accuracy.status in _NOT_CHECKED:
        reason = _NOT_CHECKED[accuracy.status] if accuracy is not None else ""
        detail = one_line(accuracy.detail) if accuracy is not None else ""
        return f"not checked: {detail or reason}" if detail or reason else "not checked"
    status = _CHECKED[accuracy.status]
    parts = [format_count(accuracy.compared, "tensor")] if accuracy.compared else []
    if accuracy.method:
        parts.append(f"by {one_line(accuracy.method)}")
    if accuracy.without_reference:
        parts.append(f"no float64 reference ({one_line(accuracy.without_reference)})")
    if accuracy.max_error is not None:
        parts.append(f"largest difference {accuracy.max_error:.3g}")
    text = f"{status} ({', '.join(parts)})" if parts else status
    return f"{text}: {one_line(accuracy.detail)}" if accuracy.detail else text


def break_even_text(comparison: Comparison) -> str:
    """Return for example `1200 iterations [950, 1700]`; `never` if the candidate is not faster."""
    iterations, interval = comparison.break_even_iterations, comparison.break_even_interval
    if iterations is None:
        return ABSENT
    if not math.isfinite(iterations):
        low = "" if interval is None or not math.isfinite(interval.low) else interval.low
        return f"never [{low:.3g} at the earliest]" if low else "never: the candidate is not faster"
    text = f"{_whole(iterations)} iterations"
    if interval is None:
        return text
    high = _whole(interval.high) if math.isfinite(interval.high) else "never"
    return f"{text} [{_whole(interval.low)}, {high}]"


def _whole(iterations: float) -> str:
    """Round up to an integer with three significant digits."""
    return f"{math.ceil(float(f'{iterations:.3g}')):,}".replace(",", " ")


def failure_text(failure: Failure) -> str:
    """Return failure kind, variant, phase, message and log path."""
    text = (
        f"{one_line(failure.kind)} ({one_line(failure.variant)}, {one_line(failure.phase)}): "
        f"{one_line(failure.message)}"
    )
    if failure.hint:
        text += f" ({one_line(failure.hint)})"
    return f"{text}; log: {one_line(failure.log)}" if failure.log else text


def notes_of(comparison: Comparison, *, precision_goal: float | None = None) -> list[str]:
    """Return the notes of a comparison, most severe first."""
    notes = [f"{UNTRUSTED}: {one_line(reason)}" for reason in comparison.untrusted]
    if comparison.failure is not None:
        notes.append(failure_text(comparison.failure))
    if comparison.verdict is Verdict.WRONG:
        notes.append(f"results {accuracy_text(comparison.accuracy)}; the speedup does not count")
    elif comparison.accuracy is not None and comparison.accuracy.status is not AccuracyStatus.PASS:
        notes.append(f"results {accuracy_text(comparison.accuracy)}")
    if comparison.estimate is not None:
        notes.extend(_estimate_notes(comparison.state, comparison.estimate, precision_goal))
    breaks = sum(count for _, count in comparison.candidate_metrics.graph_breaks)
    if breaks:
        notes.append(format_count(breaks, "graph break"))
    shown = " ".join(notes)
    notes.extend(
        one_line(note)
        for note in comparison.notes
        # The detail of wrong results is part of the accuracy above.
        if not (note.startswith(WRONG_RESULTS) and one_line(note[len(WRONG_RESULTS) :]) in shown)
    )
    return list(dict.fromkeys(notes))


def _estimate_notes(
    verdict: Verdict, estimate: Estimate, precision_goal: float | None
) -> list[str]:
    notes = [one_line(reason) for reason in estimate.reasons]
    if verdict is Verdict.UNDECIDED:
        goal = f" for ±{format_percent(precision_goal)}" if precision_goal else " to decide"
        ends = estimate.time_needed_range_s
        range_text = (
            "" if ends is None else f"{about_duration(ends[0])} to {about_duration(ends[1])}"
        )
        if estimate.time_needed_s is not None:
            needed = about_duration(estimate.time_needed_s)
            notes.append(f"needs about {needed}{f' ({range_text})' if range_text else ''}{goal}")
        elif range_text:
            notes.append(
                f"needs {range_text}{goal}; {estimate.launches} launches do not allow a closer estimate"
            )
        if estimate.minimum_detectable is not None:
            smallest = format_percent(estimate.minimum_detectable)
            notes.append(f"smallest detectable difference: {smallest}")
    if estimate.scope == "processes":
        notes.append(_ONE_LAUNCH)
    return notes

"""The answer of a run in one sentence, from the same numbers as the table.

Only trusted verdicts become a statement about speed. An undecided, untrusted, wrong or failed
comparison is named as such first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchyard.bench.report.suite_summary import mean_text, suite_means, verdict_counts
from torchyard.core.comparison import AccuracyStatus, Comparison, Verdict
from torchyard.core.study import COMMAND_SUITE
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import break_even_text, speedup_text, workload_text


def answer_text(comparisons: Sequence[Comparison], *, confidence: float, margin: float) -> str:
    """Return the verdict of one comparison, or counts and geometric means of several."""
    if not comparisons:
        return "no comparisons"
    setup = f"; {', '.join([*_devices(comparisons), _torch_text(comparisons)])}"
    if all(one.workload.suite == COMMAND_SUITE for one in comparisons):
        setup = ""
    if len(comparisons) == 1:
        return _verdict_text(comparisons[0], margin) + setup
    counts = ", ".join(
        f"{count} {verdict.value}" for verdict, count in verdict_counts(comparisons).items()
    )
    means = [mean_text(mean) for mean in suite_means(comparisons, confidence=confidence)]
    return (
        f"{format_count(len(comparisons), 'comparison')}: {counts}; "
        + ("; ".join(means) or "no speedup counts in a geometric mean")
        + setup
    )


def _verdict_text(comparison: Comparison, margin: float) -> str:
    baseline, candidate = one_line(comparison.baseline), one_line(comparison.candidate)
    is_command = comparison.workload.suite == COMMAND_SUITE
    place = "" if is_command else f" on {workload_text(comparison)}"
    state = comparison.state
    if state is Verdict.FAILED:
        failure = comparison.failure
        reason = f": {one_line(failure.kind)} ({one_line(failure.phase)})" if failure else ""
        return f"failed: no comparison of {candidate} with {baseline}{place}{reason}"
    if state is Verdict.WRONG:
        return f"wrong: {candidate} computes wrong results{place}, so its speed does not count"
    if state is Verdict.UNTRUSTED:
        return (
            f"untrusted: the measurements of {candidate} and {baseline}{place} must not be "
            f"used: {one_line(comparison.untrusted[0])}"
        )
    if state is Verdict.UNDECIDED:
        text = f"undecided whether {candidate} is faster or slower than {baseline}{place}"
    elif state is Verdict.SAME:
        text = f"{candidate} is as fast as {baseline}{place}, within {format_percent(margin)}"
    else:
        text = f"{candidate} is {state.value} than {baseline}{place}"
    return f"{text}: {', '.join(_measures(comparison))}"


def _measures(comparison: Comparison) -> list[str]:
    """Return speedup, compile time, break-even and a doubt about the results, where known."""
    estimate = comparison.estimate
    measures = [f"speedup {speedup_text(comparison)}"]
    if estimate is not None and estimate.interval is not None:
        scope = " of the measured processes" if estimate.scope == "processes" else ""
        measures[0] += f" ({100 * estimate.interval.confidence:g} % CI{scope})"
    compile_s = comparison.candidate_metrics.compile_cold_s
    if compile_s is not None:
        measures.append(f"compile time {format_duration(compile_s * 1e9)}")
        iterations = comparison.break_even_iterations
        if iterations is not None and comparison.state in {Verdict.FASTER, Verdict.SLOWER}:
            pays = math.isfinite(iterations)
            measures[-1] += (
                f" that pays off after {break_even_text(comparison)}"
                if pays
                else " that does not pay off"
            )
    if comparison.not_checked:
        measures.append("results not checked")
    elif comparison.accuracy and comparison.accuracy.status is AccuracyStatus.LESS_ACCURATE:
        measures.append("results less accurate")
    return measures


def _devices(comparisons: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(one_line(one.workload.device) for one in comparisons))


def _torch_text(comparisons: Sequence[Comparison]) -> str:
    """Return the versions of torch; those of the candidates first."""
    metrics = [one.candidate_metrics for one in comparisons]
    metrics += [one.baseline_metrics for one in comparisons]
    versions = dict.fromkeys(one_line(one.torch_version) for one in metrics if one.torch_version)
    return f"torch {' and '.join(versions)}" if versions else "torch version unknown"

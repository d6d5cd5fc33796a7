"""Summaries that all formats share: verdict counts, suite means and rows, guard readings, the answer.

`stats` computes the means; this module selects the comparisons, so that a wrong, failed or
untrusted one never changes a mean, and lists those left out. A comparison passes if it ran and its
results were correct, however fast it was; one that could not be checked, because it is random or
not deterministic, has not passed.

The answer is one sentence from the same numbers. Only trusted verdicts become a statement about
speed; an undecided, untrusted, wrong or failed comparison is named as such first.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchyard.bench.timeline import phase_times
from torchyard.core.comparison import (
    DROPPED,
    NOISY,
    WITHOUT_SPEED,
    AccuracyStatus,
    Comparison,
    GuardSummary,
    Interval,
    Scope,
    Verdict,
)
from torchyard.core.study import COMMAND_SUITE
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import (
    MARKS,
    accuracy_text,
    break_even_text,
    failure_text,
    notes_of,
    number_text,
    speedup_text,
    title_of,
    verdict_text,
    workload_text,
)
from torchyard.results.run_reader import Run

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class SuiteMean:
    """The geometric mean of one candidate's speedups."""

    candidate: str
    baseline: str
    speedup: float
    interval: Interval
    comparisons: int
    scope: Scope
    """Scope of the interval: new processes, or only the processes that ran."""
    untrusted: int = 0
    """Number of untrusted comparisons excluded from the mean."""


def suite_means(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[SuiteMean]:
    """Return one mean per baseline and candidate, in the order of the table."""
    # Imported here because it loads numpy, which a report without numbers does not need.
    from torchyard.stats.suite import counts_in_mean, geometric_mean

    means = []
    for (baseline, candidate), rows in _grouped(comparisons, _variants).items():
        estimates = [one.estimate for one in _counted(rows) if one.estimate is not None]
        mean = geometric_mean(estimates, confidence=confidence) if estimates else None
        if mean is not None:
            means.append(
                SuiteMean(
                    candidate=candidate,
                    baseline=baseline,
                    speedup=mean[0],
                    interval=mean[1],
                    comparisons=len(estimates),
                    scope="launches" if counts_in_mean(estimates[0]) else "processes",
                    untrusted=sum(one.state is Verdict.UNTRUSTED for one in rows),
                )
            )
    return means


def excluded_from_means(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str]]:
    """Return the comparisons that are in no mean, each with its reason."""
    excluded: list[tuple[Comparison, str]] = []
    for rows in _grouped(comparisons, _variants).values():
        counted = {id(one) for one in _counted(rows)}
        excluded.extend((one, _reason(one)) for one in rows if id(one) not in counted)
    return excluded


def _grouped(
    comparisons: Sequence[Comparison], key: Callable[[Comparison], K]
) -> dict[K, list[Comparison]]:
    """Return the comparisons by key, in the order of the table."""
    groups: dict[K, list[Comparison]] = defaultdict(list)
    for one in comparisons:
        groups[key(one)].append(one)
    return groups


def _variants(comparison: Comparison) -> tuple[str, str]:
    return comparison.baseline, comparison.candidate


def _counted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of one candidate that `geometric_mean` averages."""
    from torchyard.stats.suite import counts_in_mean

    sound = [one for one in rows if one.state not in WITHOUT_SPEED]
    over_launches = [one for one in sound if one.estimate and counts_in_mean(one.estimate)]
    return over_launches or [one for one in sound if one.estimate and one.estimate.interval]


def _reason(comparison: Comparison) -> str:
    if comparison.failure is not None:
        return failure_text(comparison.failure)
    if comparison.verdict is Verdict.FAILED:
        return "no reason recorded"
    if comparison.verdict is Verdict.WRONG:
        return f"results {accuracy_text(comparison.accuracy)}"
    if not comparison.trusted:
        return "; ".join(one_line(reason) for reason in comparison.untrusted)
    return "too few launches to estimate the variation between them"


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """Summary of one suite and candidate."""

    suite: str
    baseline: str
    candidate: str
    counts: Mapping[Verdict, int]
    mean: SuiteMean | None
    """None if no comparison counts."""
    passed: int
    """Number of comparisons that ran with correct results."""
    not_checked: int = 0
    """Number of comparisons that ran but could not be checked."""

    @property
    def total(self) -> int:
        """Number of comparisons."""
        return sum(self.counts.values())


def suite_rows(comparisons: Sequence[Comparison], *, confidence: float) -> list[SuiteRow]:
    """Return one row per suite, baseline and candidate, in the order of the table."""
    groups = _grouped(comparisons, lambda one: (one.workload.suite, *_variants(one)))
    rows = []
    for (suite, baseline, candidate), own in groups.items():
        means = suite_means(own, confidence=confidence)
        rows.append(
            SuiteRow(
                suite=suite,
                baseline=baseline,
                candidate=candidate,
                counts=verdict_counts(own),
                mean=means[0] if means else None,
                passed=sum(one.passed for one in own),
                not_checked=sum(one.not_checked for one in own),
            )
        )
    return rows


def pass_text(passed: int, total: int, not_checked: int = 0) -> str:
    """Return `5 of 6 (83%), 1 not checked`; the share excludes unchecked rows, and 100 % means all."""
    if not total:
        return "none"
    checked = total - not_checked
    if not checked:
        return f"{not_checked} not checked"
    share = 100 if passed == checked else min(99, round(100 * passed / checked))
    text = f"{passed} of {checked} ({share}%)"
    return f"{text}, {not_checked} not checked" if not_checked else text


def verdict_counts(comparisons: Sequence[Comparison]) -> dict[Verdict, int]:
    """Return the number of comparisons by verdict, in the order of the legend."""
    counts = Counter(comparison.state for comparison in comparisons)
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def counts_text(comparisons: Sequence[Comparison]) -> str:
    """Return for example `3 comparisons: ▲ 2 faster, ✗ 1 failed`."""
    total = len(comparisons)
    if not total:
        return "no comparisons"
    counts = ", ".join(
        f"{MARKS[verdict]} {count} {verdict.value}"
        for verdict, count in verdict_counts(comparisons).items()
    )
    return f"{total} comparison{'s' if total != 1 else ''}: {counts}"


def mean_text(mean: SuiteMean) -> str:
    """Return for example `inductor vs eager: geometric mean 1.052x [1.031, 1.073] over 5 comparisons`."""
    scope = ", valid for the measured processes only" if mean.scope == "processes" else ""
    untrusted = f" ({mean.untrusted} untrusted excluded)" if mean.untrusted else ""
    return (
        f"{one_line(mean.candidate)} vs {one_line(mean.baseline)}: geometric mean "
        f"{number_text(mean.speedup)}x "
        f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}] "
        f"over {mean.comparisons} comparison{'s' if mean.comparisons != 1 else ''}{untrusted}{scope}"
    )


def summary_lines(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[str]:
    """Return verdict counts, one mean per candidate, and the excluded comparisons."""
    lines = [counts_text(comparisons)]
    lines.extend(mean_text(mean) for mean in suite_means(comparisons, confidence=confidence))
    excluded = excluded_from_means(comparisons)
    if excluded:
        lines.append("excluded from the mean:")
        lines.extend(
            f"  {verdict_text(comparison.state)}  {title_of(comparison)}"
            # The notes below the table are not repeated.
            + ("" if any(reason in note for note in notes_of(comparison)) else f": {reason}")
            for comparison, reason in excluded
        )
    return lines


AVAILABLE = "available"


def blocks_text(guards: GuardSummary) -> str:
    """Return for example `12 of 320 blocks disturbed: waited for a core 9, core slowed down 3`."""
    text = f"{guards.dirty} of {guards.blocks} block{'s' if guards.blocks != 1 else ''} disturbed"
    reasons = ", ".join(f"{one_line(reason)} {count}" for reason, count in guards.reasons)
    return f"{text}: {reasons}" if reasons else text


def temperature_text(guards: GuardSummary) -> str:
    """Return for example `41 to 63 °C`; empty if unknown."""
    if guards.temperature_c is None:
        return ""
    low, high = (f"{degrees:.0f}" for degrees in guards.temperature_c)
    return f"{low} °C" if low == high else f"{low} to {high} °C"


def disturbed_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one line per comparison with disturbed blocks; the notes about noise are not repeated."""
    return [
        f"{title_of(comparison)}: {blocks_text(comparison.guards)}"
        for comparison in comparisons
        if comparison.guards.dirty
        and not any(reason.startswith(NOISY) for reason in comparison.untrusted)
        and not any(DROPPED in note for note in comparison.notes)
    ]


def guard_rows(run: Run) -> list[tuple[str, str]]:
    """Return each sensor and its state over the launches of this run; empty for old runs."""
    states: dict[str, list[str]] = defaultdict(list)
    for launch in run.launches():
        recorded_states = launch.get("guards")
        for name, because in recorded_states.items() if isinstance(recorded_states, dict) else ():
            states[one_line(str(name))].append(one_line(str(because)))
    return [(name, _state_text(reasons)) for name, reasons in states.items()]


def unavailable_sensors(run: Run) -> list[tuple[str, str]]:
    """Return sensors that were unavailable in some launch, with the reason."""
    return [(name, text) for name, text in guard_rows(run) if text != AVAILABLE]


def _state_text(reasons: Sequence[str]) -> str:
    """Summarize the reasons of all launches; an empty reason means that the sensor was available."""
    failures = [reason for reason in reasons if reason]
    if not failures:
        return AVAILABLE
    reason_text = "; ".join(dict.fromkeys(failures))
    if len(failures) == len(reasons):
        return f"unavailable, because {reason_text}"
    return f"unavailable in {len(failures)} of {len(reasons)} launches, because {reason_text}"


SMALLEST_SHOWN = 0.01
"""Phases with a smaller share of the wall time are not shown."""


def wall_time_text(run: Run) -> str:
    """Return for example `13.2 s in launches: timed blocks 41%, ...`; empty for old runs."""
    times = phase_times(run.launches())
    shares = {name: seconds / times.wall_s for name, seconds in times.seconds.items()}
    parts = [f"{one_line(k)} {v:.0%}" for k, v in shares.items() if v >= SMALLEST_SHOWN]
    return f"{format_duration(times.wall_s * 1e9)} in launches: {', '.join(parts)}" if parts else ""


def wall_time_record(run: Run) -> dict[str, Any] | None:
    """Return the sums of the phases, over the run and for each workload; None for old runs."""
    by_workload: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for launch in run.launches():
        by_workload[str(launch.get("workload"))].append(launch)
    everything = [launch for launches in by_workload.values() for launch in launches]
    if not phase_times(everything).seconds:
        return None
    return {
        **_times_record(everything),
        "workloads": {label: _times_record(launches) for label, launches in by_workload.items()},
    }


def _times_record(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = phase_times(launches)
    return {
        "launches_s": times.wall_s,
        "phases_s": times.seconds,
        "timed_share": times.timed_share,
        "timed_share_after_compilation": times.timed_share_after_compilation,
    }


def answer_text(comparisons: Sequence[Comparison], *, confidence: float, margin: float) -> str:
    """Return the verdict of one comparison, or counts and geometric means of several."""
    if not comparisons:
        return "no comparisons"
    devices = dict.fromkeys(one_line(one.workload.device) for one in comparisons)
    setup = f"; {', '.join([*devices, _torch_text(comparisons)])}"
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


def _torch_text(comparisons: Sequence[Comparison]) -> str:
    """Return the versions of torch; those of the candidates first."""
    metrics = [one.candidate_metrics for one in comparisons]
    metrics += [one.baseline_metrics for one in comparisons]
    versions = dict.fromkeys(one_line(one.torch_version) for one in metrics if one.torch_version)
    return f"torch {' and '.join(versions)}" if versions else "torch version unknown"

"""Summaries that all formats share: verdict counts, suite means and rows, guard readings.

`stats` computes the means; this module selects the comparisons, so that a wrong, failed or
untrusted one never changes a mean, and lists those left out. A comparison passes if it ran and its
results were correct, however fast it was; one that could not be checked, because it is random or
not deterministic, has not passed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard.core.comparison import (
    WITHOUT_SPEED,
    Comparison,
    Estimate,
    GuardSummary,
    Interval,
    Scope,
    Verdict,
)
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import (
    MARKS,
    accuracy_text,
    failure_text,
    number_text,
    title_of,
    verdict_text,
)
from torchyard.results.run_reader import Run


@dataclass(frozen=True, kw_only=True)
class SuiteMean:
    """The geometric mean of one candidate's speedups."""

    candidate: str
    baseline: str
    speedup: float
    interval: Interval
    comparisons: int
    scope: Scope
    """What the interval speaks for: new processes, or only the ones that ran."""
    untrusted: int = 0
    """Comparisons that were left out because their numbers must not be trusted."""


def suite_means(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[SuiteMean]:
    """One mean per baseline and candidate, in the order of the table."""
    # numpy comes with it, and a report without a number needs none.
    from torchyard.stats.suite import counts_in_mean, geometric_mean

    means = []
    for baseline, candidate in dict.fromkeys((one.baseline, one.candidate) for one in comparisons):
        rows = [
            one for one in comparisons if (one.baseline, one.candidate) == (baseline, candidate)
        ]
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


def left_out(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str]]:
    """The comparisons that are in no mean, each with its reason."""
    found: list[tuple[Comparison, str]] = []
    for baseline, candidate in dict.fromkeys((one.baseline, one.candidate) for one in comparisons):
        rows = [
            one for one in comparisons if (one.baseline, one.candidate) == (baseline, candidate)
        ]
        counted = {id(one) for one in _counted(rows)}
        found.extend((one, _reason(one)) for one in rows if id(one) not in counted)
    return found


def _counted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Of one candidate's rows, those that `geometric_mean` averages."""
    from torchyard.stats.suite import counts_in_mean

    sound = [one for one in rows if one.state not in WITHOUT_SPEED]
    over_launches = [one for one in sound if one.estimate and counts_in_mean(one.estimate)]
    return over_launches or [one for one in sound if _has_interval(one.estimate)]


def _has_interval(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.interval is not None


def _reason(comparison: Comparison) -> str:
    if comparison.failure is not None:
        return failure_text(comparison.failure)
    if comparison.verdict is Verdict.FAILED:
        return "no reason was recorded"
    if comparison.verdict is Verdict.WRONG:
        return f"results {accuracy_text(comparison.accuracy)}"
    if not comparison.trusted:
        return "; ".join(one_line(reason) for reason in comparison.untrusted)
    return "too few launches for a spread between them"


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """What a suite says of one candidate."""

    suite: str
    baseline: str
    candidate: str
    counts: Mapping[Verdict, int]
    mean: SuiteMean | None
    """None when no comparison of it counts."""
    passed: int
    """Those that ran with results that were found right."""
    not_checked: int = 0
    """Those that ran and whose results could not be checked."""

    @property
    def total(self) -> int:
        """All comparisons."""
        return sum(self.counts.values())


def suite_rows(comparisons: Sequence[Comparison], *, confidence: float) -> list[SuiteRow]:
    """In the order of the table."""
    keys = dict.fromkeys((one.workload.suite, one.baseline, one.candidate) for one in comparisons)
    rows = []
    for suite, baseline, candidate in keys:
        own = [
            one
            for one in comparisons
            if (one.workload.suite, one.baseline, one.candidate) == (suite, baseline, candidate)
        ]
        found = Counter(one.state for one in own)
        means = suite_means(own, confidence=confidence)
        rows.append(
            SuiteRow(
                suite=suite,
                baseline=baseline,
                candidate=candidate,
                counts={verdict: found[verdict] for verdict in Verdict if found[verdict]},
                mean=means[0] if means else None,
                passed=sum(one.passed for one in own),
                not_checked=sum(one.not_checked for one in own),
            )
        )
    return rows


def pass_text(passed: int, total: int, not_checked: int = 0) -> str:
    """`5 of 6 (83%), 1 not checked`; only all is 100 %, and rows not checked are in no share."""
    if not total:
        return "none"
    checked = total - not_checked
    if not checked:
        return f"{not_checked} not checked"
    share = 100 if passed == checked else min(99, round(100 * passed / checked))
    text = f"{passed} of {checked} ({share}%)"
    return f"{text}, {not_checked} not checked" if not_checked else text


def verdict_counts(comparisons: Sequence[Comparison]) -> dict[Verdict, int]:
    """How many comparisons are in each state, in the order of the table's legend."""
    counts = Counter(comparison.state for comparison in comparisons)
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def counts_text(comparisons: Sequence[Comparison]) -> str:
    """`3 comparisons: ▲ 2 faster, ✗ 1 failed`."""
    total = len(comparisons)
    if not total:
        return "no comparisons"
    counts = ", ".join(
        f"{MARKS[verdict]} {count} {verdict.value}"
        for verdict, count in verdict_counts(comparisons).items()
    )
    return f"{total} comparison{'s' if total != 1 else ''}: {counts}"


def mean_text(mean: SuiteMean) -> str:
    """`inductor against eager: geometric mean 1.052x [1.031, 1.073] over 5 comparisons`."""
    scope = ", for the processes that ran only" if mean.scope == "processes" else ""
    untrusted = f" ({mean.untrusted} untrusted left out)" if mean.untrusted else ""
    return (
        f"{one_line(mean.candidate)} against {one_line(mean.baseline)}: geometric mean "
        f"{number_text(mean.speedup)}x "
        f"[{number_text(mean.interval.low)}, {number_text(mean.interval.high)}] "
        f"over {mean.comparisons} comparison{'s' if mean.comparisons != 1 else ''}{untrusted}{scope}"
    )


def summary_lines(comparisons: Sequence[Comparison], *, confidence: float = 0.95) -> list[str]:
    """Counts, one mean per candidate, and the failures beside them."""
    lines = [counts_text(comparisons)]
    lines.extend(mean_text(mean) for mean in suite_means(comparisons, confidence=confidence))
    missing = left_out(comparisons)
    if missing:
        lines.append("not in the mean:")
        lines.extend(
            f"  {verdict_text(comparison.state)}  {title_of(comparison)}: {reason}"
            for comparison, reason in missing
        )
    return lines


READ = "read"


def blocks_text(guards: GuardSummary) -> str:
    """`12 of 320 blocks dirty: waited for a core 9, core slowed down 3`."""
    text = f"{guards.dirty} of {guards.blocks} block{'s' if guards.blocks != 1 else ''} dirty"
    reasons = ", ".join(f"{one_line(reason)} {count}" for reason, count in guards.reasons)
    return f"{text}: {reasons}" if reasons else text


def temperature_text(guards: GuardSummary) -> str:
    """`41 to 63 °C`; empty when it was not read."""
    if guards.temperature_c is None:
        return ""
    low, high = (f"{degrees:.0f}" for degrees in guards.temperature_c)
    return f"{low} °C" if low == high else f"{low} to {high} °C"


def disturbed_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """One line for each comparison that had dirty blocks."""
    return [
        f"{title_of(comparison)}: {blocks_text(comparison.guards)}"
        for comparison in comparisons
        if comparison.guards.dirty
    ]


def guard_rows(run: Run) -> list[tuple[str, str]]:
    """Each guard, and whether it could read in the launches of this run; none in an old run."""
    states: dict[str, list[str]] = defaultdict(list)
    for launch in run.launches():
        found = launch.get("guards")
        for name, because in found.items() if isinstance(found, dict) else ():
            states[one_line(str(name))].append(one_line(str(because)))
    return [(name, _state_text(reasons)) for name, reasons in states.items()]


def unread_guards(run: Run) -> list[tuple[str, str]]:
    """Guards that read nothing, or not in every launch, with the reason."""
    return [(name, text) for name, text in guard_rows(run) if text != READ]


def _state_text(reasons: Sequence[str]) -> str:
    """From what each launch said: empty where the guard could read."""
    missing = [reason for reason in reasons if reason]
    if not missing:
        return READ
    said = "; ".join(dict.fromkeys(missing))
    if len(missing) == len(reasons):
        return f"unavailable, because {said}"
    return f"unavailable in {len(missing)} of {len(reasons)} launches, because {said}"

"""Summarize a sweep: corrected verdicts, means over common workloads, false alarms.

Read-only. Means contain passed and trusted rows only and are never clipped; rows that did not pass
are listed separately.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Final

from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.core.units import format_count
from torchyard.machine.identity import machine_name, machine_text
from torchyard.results.run_reader import Run
from torchyard.stats.suite import (
    adjust_for_suite,
    chance_of_at_least,
    counts_in_mean,
    excess_of_small,
    geometric_mean,
    p_value_bins,
    selected_intervals,
    verdict_alone,
    wilson_interval,
)
from torchyard.sweep.model import (
    ENDS,
    CellStatus,
    FalseAlarms,
    GroupKey,
    MeanSpeedup,
    SummarizedRun,
    SweepGroup,
    SweepPlan,
    SweepRow,
    SweepSummary,
)
from torchyard.sweep.rows import (
    ENDS_WITH_SPEEDUP,
    Names,
    comparisons_of,
    names_of,
    provisional_comparisons,
    provisional_row,
    row_of,
    row_without_result,
)

_EXTREMES: Final = 5
_CLAIMS: Final = frozenset({Verdict.FASTER, Verdict.SLOWER})
Measured = dict[int, Estimate]
"""Estimates by the index of their row."""


def sweep_summary(
    plan: SweepPlan,
    statuses: Sequence[CellStatus],
    runs: Sequence[Run],
    *,
    folders: Sequence[Path] = (),
) -> SweepSummary:
    """Summarize the sweep as it is now.

    `runs` are its joined runs, or those of its cells while it is running. With the sweep folder of
    each status, cells without a run show the end of their logs.
    """
    budget = plan.cells[0].study.budget if plan.cells else Budget()
    rows, tested = _rows(statuses, runs, budget, folders)
    rows = _corrected(rows, tested, budget)
    measured = {index: one for index, one in tested.items() if rows[index].end == "passed"}
    groups = _groups(rows, measured, tested, budget)
    best, worst = (
        [] if plan.null else _extremes(rows, measured, verdict)
        for verdict in (Verdict.FASTER, Verdict.SLOWER)
    )
    _correct_for_selection(rows, [*best, *worst], measured, budget.alpha)
    several = len({(key.suite, key.mode, key.precision) for key in (g.key for g in groups)}) > 1
    checked = all(cell.study.settings.check_accuracy for cell in plan.cells)
    summary = SweepSummary(
        name=plan.name,
        created=plan.created,
        torchyard=plan.torchyard,
        revision=plan.revision,
        shard=plan.shard,
        null=plan.null,
        checked=checked,
        alpha=budget.alpha,
        margin=budget.margin,
        cells=len(plan.cells),
        cells_finished=sum(not status.is_open for status in statuses),
        rows=tuple(rows),
        groups=groups,
        totals=_totals(rows, measured, tested, budget) if several else (),
        best=tuple(rows[index] for index in best),
        worst=tuple(rows[index] for index in worst),
        false_alarms=_false_alarms(rows, budget) if plan.null else None,
        runs=tuple(
            SummarizedRun(
                id=run.id,
                precision=run.study.baseline.precision,
                name=run.study.name,
                state=run.state,
            )
            for run in runs
        ),
    )
    machines = {machine_name(run.info): machine_text(run.info) for run in runs}
    metrics = [
        metric
        for run in runs
        for one in run.comparisons
        for metric in (one.baseline_metrics, one.candidate_metrics)
    ]
    return replace(
        summary,
        machines=tuple(text for text in machines.values() if text),
        torch=tuple(dict.fromkeys(one.torch_version for one in metrics if one.torch_version)),
        doubts=tuple(_doubts(summary, len(machines))),
    )


def _rows(
    statuses: Sequence[CellStatus], runs: Sequence[Run], budget: Budget, folders: Sequence[Path]
) -> tuple[list[SweepRow], Measured]:
    comparisons = comparisons_of(runs)
    rows: list[SweepRow] = []
    measured: Measured = {}
    # A comparison that is in cells of two sweeps is one row.
    planned: dict[Names, tuple[CellStatus | None, Path | None]] = {
        names: (status, folder)
        for status, folder in zip_longest(statuses, folders)
        for names in names_of(status)
    }
    for names in comparisons:
        planned.setdefault(names, (None, None))
    for names, (status, folder) in planned.items():
        item = comparisons.get(names)
        if item is None and status is not None:
            provisional = provisional_comparisons(status, folder).get(names)
            if provisional is not None:
                rows.append(provisional_row(provisional, status, names))
                continue
        if status is not None and (item is None or item.given_up):
            failure = item.comparison.failure if item else None
            tail = failure.log_tail if failure else ""
            rows.append(row_without_result(status, names, folder=folder, log_tail=tail))
            continue
        if item is None:
            continue
        estimate = item.comparison.estimate
        verdict = verdict_alone(estimate, budget) if estimate else Verdict.UNDECIDED
        row = row_of(item, status=status, uncorrected=verdict)
        if estimate is not None and row.end in ENDS_WITH_SPEEDUP and row.trusted:
            measured[len(rows)] = estimate
        rows.append(row)
    return rows, measured


def _corrected(rows: list[SweepRow], tested: Measured, budget: Budget) -> list[SweepRow]:
    """Apply Benjamini-Hochberg over all suites, precisions and candidates of the sweep."""
    indices = list(tested)
    # Undo earlier corrections over a smaller family.
    uncorrected = [
        replace(tested[index], verdict=rows[index].verdict_alone, p_adjusted=None, reasons=())
        for index in indices
    ]
    result = list(rows)
    for index, estimate in zip(
        indices, adjust_for_suite(uncorrected, budget.alpha, family="sweep"), strict=True
    ):
        reasons = [
            row_reason for row_reason in (rows[index].reason, *estimate.reasons) if row_reason
        ]
        result[index] = replace(
            rows[index],
            p_adjusted=estimate.p_adjusted,
            verdict=estimate.verdict,
            reason="; ".join(reasons),
        )
    return result


def _groups(
    rows: Sequence[SweepRow], measured: Measured, tested: Measured, budget: Budget
) -> tuple[SweepGroup, ...]:
    kinds = dict.fromkeys((row.suite, row.mode, row.precision, row.baseline) for row in rows)
    groups = []
    for suite, mode, precision, baseline in kinds:
        indices = [
            index
            for index, row in enumerate(rows)
            if (row.suite, row.mode, row.precision, row.baseline)
            == (suite, mode, precision, baseline)
        ]
        for candidate in dict.fromkeys(rows[index].candidate for index in indices):
            key = GroupKey(
                suite=suite,
                mode=mode,
                precision=precision,
                baseline=baseline,
                candidate=candidate,
            )
            groups.append(_group(key, rows, indices, measured, tested, budget))
    return tuple(groups)


def _totals(
    rows: Sequence[SweepRow], measured: Measured, tested: Measured, budget: Budget
) -> tuple[SweepGroup, ...]:
    everything = range(len(rows))
    keys = dict.fromkeys(GroupKey(baseline=row.baseline, candidate=row.candidate) for row in rows)
    return tuple(_group(key, rows, everything, measured, tested, budget) for key in keys)


def _group(
    key: GroupKey,
    rows: Sequence[SweepRow],
    indices: Iterable[int],
    measured: Measured,
    tested: Measured,
    budget: Budget,
) -> SweepGroup:
    """Summarize the rows of one candidate.

    `indices` are the rows of all candidates, which determine the common workloads. `tested` also has
    rows whose results could not be verified.
    """
    indices = list(indices)
    own = [index for index in indices if rows[index].candidate == key.candidate]
    mine = [rows[index] for index in own]
    usable, scope = _usable(indices, measured)
    passed_by: dict[tuple[str, str], set[str]] = {}
    for index in usable:
        row = rows[index]
        passed_by.setdefault((row.workload, row.precision), set()).add(row.candidate)
    candidates = {rows[index].candidate for index in indices}
    common = [
        index
        for index in own
        if index in usable
        and passed_by[(rows[index].workload, rows[index].precision)] == candidates
    ]
    own_usable = [index for index in own if index in usable]
    not_wrong, not_wrong_scope = _usable(own, tested)
    with_speedup = [row for row in mine if row.end in ENDS_WITH_SPEEDUP]
    compiles = [row.compile_s for row in with_speedup if row.compile_s is not None]
    memories = [math.log(row.memory_ratio) for row in with_speedup if row.memory_ratio]
    break_evens = [row.break_even for row in with_speedup if row.break_even is not None]
    ends, verdicts = Counter(row.end for row in mine), Counter(row.verdict for row in mine)

    def mean(chosen: Sequence[int], over_launches: bool) -> MeanSpeedup | None:
        result = geometric_mean([tested[index] for index in chosen], confidence=1.0 - budget.alpha)
        if result is None:
            return None
        return MeanSpeedup(
            speedup=result[0],
            interval=result[1],
            workloads=len(chosen),
            scope="launches" if over_launches else "processes",
        )

    return SweepGroup(
        key=key,
        workloads=len(mine),
        ends=tuple((end, ends[end]) for end in ENDS if ends[end]),
        verdicts=tuple((word, verdicts[word]) for word in Verdict if verdicts[word]),
        common=mean(common, scope),
        own=mean(own_usable, scope),
        not_wrong=mean(sorted(not_wrong), not_wrong_scope)
        if len(not_wrong) > len(own_usable)
        else None,
        compiled=len(compiles),
        compile_median_s=median(compiles) if compiles else None,
        compile_sum_s=math.fsum(compiles) if compiles else None,
        memory_ratio=math.exp(math.fsum(memories) / len(memories)) if memories else None,
        memory_rows=len(memories),
        break_even_median=median(break_evens) if break_evens else None,
        break_even_rows=len(break_evens),
        untrusted=sum(row.verdict is Verdict.UNTRUSTED for row in mine),
    )


def _usable(indices: Sequence[int], measured: Measured) -> tuple[set[int], bool]:
    """Return the rows that a mean can include, and whether their intervals cover launches."""
    over_launches = {p for p in indices if p in measured and counts_in_mean(measured[p])}
    if over_launches:
        return over_launches, True
    return {p for p in indices if p in measured and measured[p].interval is not None}, False


def _extremes(rows: Sequence[SweepRow], measured: Measured, verdict: Verdict) -> list[int]:
    """Return the indices of the best or the worst rows.

    Only rows that are faster or slower after the correction, ordered by the end of their interval that is
    nearer to 1: ordering by the estimate would favor noisy rows.
    """
    ends_near_one = {}
    for index in measured:
        row = rows[index]
        if row.verdict is verdict and row.trusted and row.interval is not None:
            is_best = verdict is Verdict.FASTER
            ends_near_one[index] = -row.interval.low if is_best else row.interval.high
    return sorted(ends_near_one, key=ends_near_one.__getitem__)[:_EXTREMES]


def _correct_for_selection(
    rows: list[SweepRow], chosen: Sequence[int], measured: Measured, alpha: float
) -> None:
    """Set the intervals of the chosen rows, corrected for selection."""
    intervals = selected_intervals(
        [measured[index] for index in chosen], len(measured), alpha=alpha
    )
    for index, interval in zip(chosen, intervals, strict=True):
        rows[index] = replace(rows[index], selected_interval=interval)


def _false_alarms(rows: Sequence[SweepRow], budget: Budget) -> FalseAlarms:
    tested = [r for r in rows if r.end in ENDS_WITH_SPEEDUP and r.trusted and r.p_value is not None]
    p_values = [row.p_value for row in tested if row.p_value is not None]
    significant = sum(row.interval is not None and not row.interval.covers(1.0) for row in tested)
    excess, excess_chance = excess_of_small(p_values)
    workloads = Counter((row.workload, row.precision) for row in tested)
    return FalseAlarms(
        comparisons=len(tested),
        alpha=budget.alpha,
        significant=significant,
        called=sum(row.verdict_alone in _CLAIMS for row in tested),
        called_adjusted=sum(row.verdict in _CLAIMS for row in tested),
        rate=wilson_interval(significant, len(tested)),
        chance=chance_of_at_least(significant, len(tested), budget.alpha),
        bins=p_value_bins(p_values),
        excess=excess,
        excess_chance=excess_chance,
        shared_baselines=any(count > 1 for count in workloads.values()),
    )


def _doubts(summary: SweepSummary, machines: int) -> Iterable[str]:
    open_cells = summary.cells - summary.cells_finished
    if open_cells:
        yield f"{open_cells} of {summary.cells} cells are not finished: all numbers may still change"
    single = sum(row.launches == 1 and row.end in ENDS_WITH_SPEEDUP for row in summary.rows)
    if single:
        yield (
            f"{single} of {format_count(len(summary.rows), 'comparison')} with one launch only: their "
            "numbers are valid for these processes only"
        )
    untrusted = sum(not row.trusted and row.end != "provisional" for row in summary.rows)
    if untrusted:
        verb = "is" if untrusted == 1 else "are"
        yield (
            f"{untrusted} of {len(summary.rows)} comparisons {verb} untrusted and excluded from means, "
            "lists of extremes and corrections"
        )
    if not summary.checked:
        yield "the accuracy check was off: passed only means that there is a speedup"
    if machines > 1:
        yield f"measured on {machines} different machines: means include rows of all of them"
    part, parts = summary.shard
    if parts > 1:
        yield f"this is shard {part} of {parts}: corrections and means cover this shard only"

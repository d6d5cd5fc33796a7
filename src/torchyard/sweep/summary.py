"""Summarize a sweep: corrected verdicts, means over common workloads, false alarms.

Reads finished measurements and changes nothing. Means contain passed and trusted rows only and are
never clipped; rows that did not pass are listed beside them.
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

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.machine.identity import machine_name
from torchyard.results.run_reader import Run
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
    CLAIMING,
    Names,
    comparisons_of,
    names_of,
    row_of,
    row_without_result,
)

__all__ = ["sweep_summary"]

_EXTREMES: Final = 5
_CLAIMS: Final = frozenset({Verdict.FASTER, Verdict.SLOWER})
Measured = dict[int, Estimate]
"""Estimates by the place of their row."""


def sweep_summary(
    plan: SweepPlan,
    statuses: Sequence[CellStatus],
    runs: Sequence[Run],
    *,
    folders: Sequence[Path] = (),
) -> SweepSummary:
    """Everything the sweep says so far.

    `runs` are its joined runs, or those of its cells while it goes on. With the folders of the
    sweep, one for each status, cells that have no run show the end of their logs.
    """
    budget = plan.cells[0].study.budget if plan.cells else Budget()
    rows, tested = _rows(statuses, runs, budget, folders)
    rows = _corrected(rows, tested, budget)
    measured = {place: one for place, one in tested.items() if rows[place].end == "passed"}
    groups = _groups(rows, measured, tested, budget)
    best, worst = ([], []) if plan.null else _extremes(rows, measured)
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
        cells_finished=sum(status.state in {"done", "failed"} for status in statuses),
        rows=tuple(rows),
        groups=groups,
        totals=_totals(rows, measured, tested, budget) if several else (),
        best=tuple(rows[place] for place in best),
        worst=tuple(rows[place] for place in worst),
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
    machines = {machine_name(run.info) for run in runs}
    return replace(summary, doubts=tuple(_doubts(summary, len(machines))))


def _rows(
    statuses: Sequence[CellStatus], runs: Sequence[Run], budget: Budget, folders: Sequence[Path]
) -> tuple[list[SweepRow], Measured]:
    from torchyard.stats.suite import verdict_alone

    held = comparisons_of(runs)
    rows: list[SweepRow] = []
    measured: Measured = {}
    # A comparison that two cells hold, of sweeps that are read as one, is one row.
    asked: dict[Names, tuple[CellStatus | None, Path | None]] = {
        names: (status, folder)
        for status, folder in zip_longest(statuses, folders)
        for names in names_of(status)
    }
    for names in held:
        asked.setdefault(names, (None, None))
    for names, (status, folder) in asked.items():
        found = held.get(names)
        if status is not None and (found is None or found.given_up):
            failure = found.comparison.failure if found else None
            tail = failure.log_tail if failure else ""
            rows.append(row_without_result(status, names, folder=folder, log_tail=tail))
            continue
        if found is None:
            continue
        estimate = found.comparison.estimate
        alone = verdict_alone(estimate, budget) if estimate else Verdict.UNDECIDED
        row = row_of(found, status=status, alone=alone)
        if estimate is not None and row.end in CLAIMING and row.trusted:
            measured[len(rows)] = estimate
        rows.append(row)
    return rows, measured


def _corrected(rows: list[SweepRow], tested: Measured, budget: Budget) -> list[SweepRow]:
    """Benjamini-Hochberg over every claim about speed: all suites, precisions and candidates."""
    from torchyard.stats.suite import adjust_for_suite

    places = list(tested)
    # Whatever a smaller family said before is taken back first: this one alone decides.
    whole = [
        replace(tested[place], verdict=rows[place].verdict_alone, p_adjusted=None, reasons=())
        for place in places
    ]
    result = list(rows)
    for place, found in zip(
        places, adjust_for_suite(whole, budget.alpha, family="sweep"), strict=True
    ):
        reasons = [row_reason for row_reason in (rows[place].reason, *found.reasons) if row_reason]
        result[place] = replace(
            rows[place],
            p_adjusted=found.p_adjusted,
            verdict=found.verdict,
            reason="; ".join(reasons),
        )
    return result


def _groups(
    rows: Sequence[SweepRow], measured: Measured, tested: Measured, budget: Budget
) -> tuple[SweepGroup, ...]:
    kinds = dict.fromkeys((row.suite, row.mode, row.precision, row.baseline) for row in rows)
    groups = []
    for suite, mode, precision, baseline in kinds:
        places = [
            place
            for place, row in enumerate(rows)
            if (row.suite, row.mode, row.precision, row.baseline)
            == (suite, mode, precision, baseline)
        ]
        for candidate in dict.fromkeys(rows[place].candidate for place in places):
            key = GroupKey(
                suite=suite,
                mode=mode,
                precision=precision,
                baseline=baseline,
                candidate=candidate,
            )
            groups.append(_group(key, rows, places, measured, tested, budget))
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
    places: Iterable[int],
    measured: Measured,
    tested: Measured,
    budget: Budget,
) -> SweepGroup:
    """`places` are the rows of all candidates: those that one of them failed are not common.

    `tested` has those rows too that could not be shown to be right.
    """
    places = list(places)
    own = [place for place in places if rows[place].candidate == key.candidate]
    mine = [rows[place] for place in own]
    usable, scope = _usable(places, measured)
    passed_by: dict[tuple[str, str], set[str]] = {}
    for place in usable:
        row = rows[place]
        passed_by.setdefault((row.workload, row.precision), set()).add(row.candidate)
    everybody = {rows[place].candidate for place in places}
    common = [
        place
        for place in own
        if place in usable and passed_by[(rows[place].workload, rows[place].precision)] == everybody
    ]
    own_usable = [place for place in own if place in usable]
    whole, whole_scope = _usable(own, tested)
    claiming = [row for row in mine if row.end in CLAIMING]
    compiles = [row.compile_s for row in claiming if row.compile_s is not None]
    memories = [math.log(row.memory_ratio) for row in claiming if row.memory_ratio]
    break_evens = [row.break_even for row in claiming if row.break_even is not None]
    ends, verdicts = Counter(row.end for row in mine), Counter(row.verdict for row in mine)

    def mean(chosen: Sequence[int], scope: bool) -> MeanSpeedup | None:
        from torchyard.stats.suite import geometric_mean

        found = geometric_mean([tested[place] for place in chosen], confidence=1.0 - budget.alpha)
        if found is None:
            return None
        return MeanSpeedup(
            speedup=found[0],
            interval=found[1],
            workloads=len(chosen),
            scope="launches" if scope else "processes",
        )

    return SweepGroup(
        key=key,
        workloads=len(mine),
        ends=tuple((end, ends[end]) for end in ENDS if ends[end]),
        verdicts=tuple((word, verdicts[word]) for word in Verdict if verdicts[word]),
        common=mean(common, scope),
        own=mean(own_usable, scope),
        not_wrong=mean(sorted(whole), whole_scope) if len(whole) > len(own_usable) else None,
        compiled=len(compiles),
        compile_median_s=median(compiles) if compiles else None,
        compile_sum_s=math.fsum(compiles) if compiles else None,
        memory_ratio=math.exp(math.fsum(memories) / len(memories)) if memories else None,
        memory_rows=len(memories),
        break_even_median=median(break_evens) if break_evens else None,
        break_even_rows=len(break_evens),
        untrusted=sum(row.verdict is Verdict.UNTRUSTED for row in mine),
    )


def _usable(places: Sequence[int], measured: Measured) -> tuple[set[int], bool]:
    """Rows that a mean can hold, and whether it then speaks for processes started anew."""
    from torchyard.stats.suite import counts_in_mean

    over_launches = {p for p in places if p in measured and counts_in_mean(measured[p])}
    if over_launches:
        return over_launches, True
    return {p for p in places if p in measured and measured[p].interval is not None}, False


def _extremes(rows: Sequence[SweepRow], measured: Measured) -> tuple[list[int], list[int]]:
    """The places of the best and the worst rows.

    Only rows that are decided after the correction, in the order of the end of their interval that
    is nearer to 1: the most extreme estimates are those that were lucky.
    """
    return _ranked(rows, measured, Verdict.FASTER), _ranked(rows, measured, Verdict.SLOWER)


def _correct_for_selection(
    rows: list[SweepRow], chosen: Sequence[int], measured: Measured, alpha: float
) -> None:
    """Give the chosen rows intervals that allow for having been chosen."""
    from torchyard.stats.suite import selected_intervals

    intervals = selected_intervals(
        [measured[place] for place in chosen], len(measured), alpha=alpha
    )
    for place, interval in zip(chosen, intervals, strict=True):
        rows[place] = replace(rows[place], selected_interval=interval)


def _ranked(rows: Sequence[SweepRow], measured: Measured, verdict: Verdict) -> list[int]:
    decided = [place for place in measured if rows[place].verdict is verdict]
    usable = [place for place in decided if rows[place].interval and rows[place].trusted]

    def near_end(place: int) -> float:
        interval = rows[place].interval
        if interval is None:
            raise AssertionError(rows[place])
        return -interval.low if verdict is Verdict.FASTER else interval.high

    return sorted(usable, key=near_end)[:_EXTREMES]


def _false_alarms(rows: Sequence[SweepRow], budget: Budget) -> FalseAlarms:
    from torchyard.stats.suite import (
        chance_of_at_least,
        excess_of_small,
        p_value_bins,
        wilson_interval,
    )

    tested = [r for r in rows if r.end in CLAIMING and r.trusted and r.p_value is not None]
    p_values = [row.p_value for row in tested if row.p_value is not None]
    significant = sum(_excludes_one(row.interval) for row in tested)
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


def _excludes_one(interval: Interval | None) -> bool:
    return interval is not None and not interval.covers(1.0)


def _doubts(summary: SweepSummary, machines: int) -> Iterable[str]:
    left = summary.cells - summary.cells_finished
    if left:
        yield f"{left} of {summary.cells} cells are not finished: every number may still change"
    untrusted = sum(not row.trusted for row in summary.rows)
    if untrusted:
        verb = "is" if untrusted == 1 else "are"
        yield (
            f"{untrusted} of {len(summary.rows)} comparisons {verb} untrusted: their numbers are in "
            "no mean, no list of extremes and no correction"
        )
    if not summary.checked:
        yield "results were not checked: passed says only that there is a number"
    if machines > 1:
        yield f"measured on {machines} kinds of machine: means hold rows of all of them"
    part, parts = summary.shard
    if parts > 1:
        yield f"this is part {part} of {parts}: corrections and means are those of this part"

"""Compare any two sides: two variants of a run, two runs, or a run and a saved baseline.

For every workload that both sides have, reports the numbers of both, their ratio, and what the data
supports. Variants of one run are paired. Runs with the same baseline on the same machine are compared
by their speedups. All other rows have a ratio and the reason why there is no verdict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, Estimate, Verdict
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.compare.model import (
    CrossComparison,
    CrossMean,
    CrossRow,
    FactDifference,
    SideNumbers,
    SideState,
    Unpaired,
)
from torchyard.results.compare.sides import (
    Rules,
    Side,
    describe,
    match_variants,
    numbers_of,
    state_of,
    supported_row,
)
from torchyard.results.compare.two_runs import (
    UNKNOWN,
    baseline_facts,
    candidate_facts,
    differing,
    differing_conditions,
    other_facts,
    two_run_rows,
    unmatched_rows,
)
from torchyard.results.run_reader import Run
from torchyard.stats.between_runs import Effect, effect_of, interval_of, mean_effect
from torchyard.stats.estimate import decided, estimate, verdict_of
from torchyard.stats.pairs import PairedLaunches, pair_blocks
from torchyard.stats.stopping import InterimAnalysis
from torchyard.stats.suite import benjamini_hochberg


def compare_sides(one: Side, other: Side, rules: Rules) -> CrossComparison:
    """Compare two sides."""
    same_run = len(one.runs) == len(other.runs) == 1 and one.newest.id == other.newest.id
    if same_run and (one.variant is None or other.variant is None or one.variant == other.variant):
        names = ", ".join(variant.name for variant in one.newest.study.variants)
        raise UsageError(
            f"{one.text} and {other.text} are the same run",
            hint=f"give two of its variants as RUN#VARIANT: {names}",
        )
    matched = match_variants(one, other)
    rows: list[CrossRow] = []
    unpaired: list[Unpaired] = []
    for pair in matched:
        if same_run:
            pair_rows, pair_unpaired = same_run_rows(one.newest, pair, rules)
        else:
            pair_rows, pair_unpaired = two_run_rows(one, other, pair, rules)
        rows += pair_rows
        unpaired += pair_unpaired
    if not same_run:
        unpaired += unmatched_rows(one, other, matched)
    if not rows and not unpaired:
        raise NothingToDo(
            f"{one.text} and {other.text} have no comparisons",
            hint="see the contents of a run with `torchyard report RUN`",
        )
    names_one = tuple(dict.fromkeys(pair[0] for pair in matched))
    names_other = tuple(dict.fromkeys(pair[1] for pair in matched))
    adjusted = _adjusted(rows, rules)
    return CrossComparison(
        one=describe(one, names_one),
        other=describe(other, names_other),
        rows=tuple(adjusted),
        unpaired=tuple(unpaired),
        facts=tuple(_facts(one, other, matched, same_run=same_run)),
        mean=_mean(adjusted, rules),
        confidence=rules.confidence,
        margin=rules.margin,
        session_sd=0.0 if same_run else rules.session_sd,
    )


def _adjusted(rows: Sequence[CrossRow], rules: Rules) -> list[CrossRow]:
    """Apply Benjamini-Hochberg; verdicts that are not significant afterwards become undecided."""
    tested = [row for row in rows if row.p_value is not None]
    values = benjamini_hochberg([row.p_value for row in tested if row.p_value is not None])
    adjusted = {id(row): value for row, value in zip(tested, values, strict=True)}
    return [
        _demoted(replace(row, p_adjusted=adjusted[id(row)]), 1.0 - rules.confidence)
        if id(row) in adjusted
        else row
        for row in rows
    ]


def _demoted(row: CrossRow, alpha: float) -> CrossRow:
    is_different = row.verdict in {Verdict.FASTER, Verdict.SLOWER}
    if not is_different or row.p_adjusted is None or row.p_adjusted <= alpha:
        return row
    reason = (
        f"{row.verdict} before the correction (p = {row.p_value:.3g}), but not for all rows "
        f"(adjusted p = {row.p_adjusted:.3g})"
    )
    return replace(row, verdict=Verdict.UNDECIDED, reasons=(*row.reasons, reason))


def _mean(rows: Sequence[CrossRow], rules: Rules) -> CrossMean | None:
    effects = []
    shared = 0.0
    for row in rows:
        if row.ratio and row.log_error is not None and row.degrees is not None:
            effects.append(
                Effect(log=math.log(row.ratio), error=row.log_error, degrees=row.degrees)
            )
            if row.support == "common baseline":
                sessions = 1.0 / row.one.sessions + 1.0 / row.other.sessions
                shared = max(shared, rules.session_sd * math.sqrt(sessions))
    if not effects:
        return None
    mean = mean_effect(effects, session_sd=shared)
    interval = interval_of(mean, rules.confidence)
    if interval is None:
        return None
    return CrossMean(ratio=math.exp(mean.log), interval=interval, rows=len(effects))


def _facts(
    one: Side, other: Side, matched: Sequence[tuple[str, str]], *, same_run: bool
) -> list[FactDifference]:
    candidates: list[FactDifference] = []
    for first, second in matched:
        called = first if len(matched) > 1 else "candidate"
        candidates += differing(
            candidate_facts(one.newest, first, called=called),
            candidate_facts(other.newest, second, called=called),
        )
    if not same_run:
        runs = (one.newest, other.newest)
        blocking = differing_conditions(*runs)
        bases = [run.study.baseline.name for run in runs]
        blocking += differing(
            baseline_facts(runs[0], bases[0]), baseline_facts(runs[1], bases[1]), blocks=True
        )
        informing = [
            fact
            for fact in differing(
                other_facts(runs[0], matched[0][0]), other_facts(runs[1], matched[0][1])
            )
            if UNKNOWN not in {fact.one, fact.other}
        ]
        candidates = blocking + candidates + informing
    return list({(fact.name, fact.one, fact.other): fact for fact in candidates}.values())


_SHORT_OF_ONE = 0.999
"""Only a session that used its whole time budget may spend all of alpha."""
_TINY = 1e-6
RunBlocks = Mapping[str, Sequence[Block]]


def pair_variants(
    run: Run, label: str, one: str, other: str, blocks: RunBlocks
) -> tuple[PairedLaunches, Estimate]:
    """Return the pairs of both variants and the estimate of time of one / time of other."""
    own = [block for block in blocks.get(label, ()) if block.variant in {one, other}]
    paired = pair_blocks(own, one, other)
    result = estimate(
        paired.medians,
        looks=_looks(run, label, (one, other), own, len(paired.medians)),
        budget=run.study.budget,
        pairs_dropped=paired.dropped,
        mean_launches=paired.means,
        never_same=paired.never_same,
    )
    return paired, result


def _looks(
    run: Run, label: str, names: tuple[str, str], blocks: Sequence[Block], launches: int
) -> list[InterimAnalysis]:
    """Return an interim analysis after every common launch, at the share of time used so far."""
    if not launches:
        return []
    records = [record for record in run.launches() if record.get("workload") == label]
    shares = _shares(records, run.study.budget.time_s)
    rounds: dict[tuple[int, int], set[str]] = defaultdict(set)
    for block in blocks:
        rounds[block.launch, block.round].add(block.variant)
    both = sorted({launch for (launch, _), names in rounds.items() if len(names) > 1})
    looks: list[InterimAnalysis] = []
    for count, launch in enumerate(both, start=1):
        used = max(shares.get(launch, _SHORT_OF_ONE), looks[-1].fraction if looks else 0.0)
        looks.append(InterimAnalysis(launches=count, fraction=used))
    last = max((record.get("launch", 0) for record in records), default=both[-1])
    own = [row for row in run.comparisons if row.workload.label == label and row.candidate in names]
    if both[-1] >= last and not all(_was_decided(row, run) for row in own):
        looks[-1] = InterimAnalysis(launches=looks[-1].launches, fraction=1.0)
    return looks


def _shares(records: Sequence[Mapping[str, Any]], time_s: float) -> dict[int, float]:
    """Return the share of the time budget used at the end of each launch, without the first startup."""
    shares: dict[int, float] = {}
    elapsed_s = 0.0
    for number, record in enumerate(records):
        timing = record.get("timing")
        wall_s = timing.get("wall_s", 0.0) if isinstance(timing, Mapping) else 0.0
        elapsed_s += float(wall_s) + (float(record.get("start_s") or 0.0) if number else 0.0)
        share = elapsed_s / time_s if time_s > 0 else 1.0
        shares[int(record.get("launch", number))] = min(_SHORT_OF_ONE, max(_TINY, share))
    return shares


def _was_decided(row: Comparison, run: Run) -> bool:
    """Return whether the candidate was decided before the correction over the suite."""
    result, budget = row.estimate, run.study.budget
    if result is None or result.interval is None or result.withheld:
        return False
    if not result.interval.low > 0.0:
        return False
    low, high = math.log(result.interval.low), math.log(result.interval.high)
    return decided(replace(result, verdict=verdict_of(low, high, budget.margin)), budget)


def same_run_rows(
    run: Run, pair: tuple[str, str], rules: Rules
) -> tuple[list[CrossRow], list[Unpaired]]:
    """Return a row for every workload in which both variants have numbers, and the rest."""
    rows: list[CrossRow] = []
    unpaired: list[Unpaired] = []
    blocks: RunBlocks | None = None
    measured = (row.workload.label for row in run.comparisons)
    planned = (workload.label for workload in run.study.workloads)
    for label in dict.fromkeys([*measured, *planned]):
        own = [row for row in run.comparisons if row.workload.label == label]
        states = (_state(own, run, pair[0]), _state(own, run, pair[1]))
        if states != ("measured", "measured"):
            unpaired.append(_unpaired(label, pair, states, own))
            continue
        # Recorded if one of the two is the run's baseline.
        recorded = next((one for one in own if {one.baseline, one.candidate} == set(pair)), None)
        if recorded is not None and recorded.estimate is not None:
            result, untrusted = recorded.estimate, recorded.untrusted
        else:
            blocks = _blocks(run) if blocks is None else blocks
            paired, result = pair_variants(run, label, *pair, blocks)
            noisy = ("noisy machine: most pairs were disturbed",) if paired.busy else ()
            reasons = [why for row in own if row.candidate in pair for why in row.untrusted]
            untrusted = tuple(dict.fromkeys((*noisy, *reasons)))
        rows.append(_row(run, label, pair, own, result, untrusted=untrusted, rules=rules))
    return rows, unpaired


def _blocks(run: Run) -> RunBlocks:
    if run.folder.is_file():
        raise UsageError(
            f"{run.folder} has no samples of {run.id}",
            why="two candidates of one run are paired from its samples",
            hint="give the run folder, or compare with the run's baseline",
        )
    return run.blocks_by_workload()


def _row(
    run: Run,
    label: str,
    pair: tuple[str, str],
    own: list[Comparison],
    result: Estimate,
    *,
    untrusted: tuple[str, ...],
    rules: Rules,
) -> CrossRow:
    flipped = any(row.candidate == pair[0] and row.baseline == pair[1] for row in own)
    sides = _with_ratio(
        [numbers_of([(run, _row_with(own, name))], name) for name in pair],
        1.0 / result.speedup if flipped else result.speedup,
    )
    effect = effect_of(result)
    if effect is not None and flipped:
        effect = Effect(log=-effect.log, error=effect.error, degrees=effect.degrees)
    reasons = [] if flipped else [text for text in result.reasons if "interval" not in text]
    reasons = list(dict.fromkeys([*result.withheld, *reasons]))
    if effect is None or untrusted:
        ratio = result.speedup if result.launches else None
        if effect is None and not reasons and not untrusted:
            reasons.append("too little data for an interval")
        return CrossRow(
            workload=label,
            one=sides[0],
            other=sides[1],
            support="not supported",
            basis="pairs",
            alike=True,
            ratio=1.0 / ratio if ratio and flipped else ratio,
            verdict=Verdict.UNTRUSTED if untrusted else None,
            interval=interval_of(effect, rules.confidence) if effect is not None else None,
            reasons=tuple(reasons),
            untrusted=untrusted,
        )
    row = supported_row(label, sides, effect, rules, support="interleaved", basis="pairs")
    verdict = Verdict.UNDECIDED if result.withheld else row.verdict
    return replace(row, verdict=verdict, reasons=tuple(reasons))


def _with_ratio(sides: list[SideNumbers], ratio: float) -> list[SideNumbers]:
    """Scale the times of both sides, keeping their geometric mean, so that their ratio is that of the pairs."""
    one, other = (side.time_ns for side in sides)
    if not one or not other or not 0.0 < ratio < math.inf:
        return sides
    mean, root = math.sqrt(one) * math.sqrt(other), math.sqrt(ratio)
    return [replace(sides[0], time_ns=mean * root), replace(sides[1], time_ns=mean / root)]


def _row_with(own: list[Comparison], name: str) -> Comparison:
    """Return the variant's own comparison; for the baseline, any with a number."""
    as_candidate = [row for row in own if row.candidate == name]
    measured = [row for row in own if state_of(row) == "measured"]
    return (as_candidate or measured or own)[0]


def _state(own: list[Comparison], run: Run, name: str) -> SideState:
    if not own:
        return "absent"
    if name == run.study.baseline.name:
        states = [state_of(row) for row in own]
        has_baseline = any(state in {"measured", "wrong"} for state in states)
        return "measured" if has_baseline else "failed"
    states = [state_of(row) for row in own if row.candidate == name]
    return states[0] if states else "absent"


def _unpaired(
    label: str, pair: tuple[str, str], states: tuple[SideState, SideState], own: list[Comparison]
) -> Unpaired:
    texts = []
    for name, state in zip(pair, states, strict=True):
        if state == "measured":
            continue
        rows = [row for row in own if row.candidate == name]
        failure = rows[0].failure if rows else None
        detail = f": {failure.kind} ({failure.message})" if failure is not None else ""
        if rows and rows[0].verdict is Verdict.WRONG and rows[0].accuracy is not None:
            detail = f": {rows[0].accuracy.detail}"
        texts.append("not measured by the run" if not own else f"{name} {state}{detail}")
    return Unpaired(
        workload=label,
        variants=pair,
        one=states[0],
        other=states[1],
        why="; ".join(dict.fromkeys(texts)),
    )

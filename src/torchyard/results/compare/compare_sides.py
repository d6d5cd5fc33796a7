"""Compare any two sides: two variants of a run, two runs, or a run and a saved baseline.

For every workload that both sides have, reports the numbers of both, their ratio, and what the data
supports. Variants of one run are paired. Runs with the same baseline on the same machine are compared
by their speedups. All other rows have a ratio and the reason why there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchyard.core.comparison import Verdict
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.compare.facts import (
    UNKNOWN,
    baseline_facts,
    candidate_facts,
    differing,
    differing_conditions,
    other_facts,
)
from torchyard.results.compare.model import (
    CrossComparison,
    CrossMean,
    CrossRow,
    FactDifference,
    Unpaired,
)
from torchyard.results.compare.same_run import same_run_rows
from torchyard.results.compare.sides import Rules, Side, describe, match_variants
from torchyard.results.compare.two_runs import two_run_rows, unmatched_rows
from torchyard.stats.between_runs import Effect, interval_of, mean_effect
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

"""Two variants of one run as rows: paired again from the blocks where they were kept.

Knows which variants failed or were wrong and says so instead of a number.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchyard.core.comparison import Comparison, Estimate, Verdict
from torchyard.core.cross_comparison import CrossRow, SideNumbers, SideState, Unpaired
from torchyard.errors import UsageError
from torchyard.results.run_reader import Run
from torchyard.stats.between_runs import Effect, effect_of, interval_of, p_of, ratio_verdict
from torchyard.workflow.compare_interleaved import RunBlocks, pair_variants, read_blocks
from torchyard.workflow.compare_numbers import numbers_of, state_of
from torchyard.workflow.compare_rules import Rules

__all__ = ["same_run_rows"]


def same_run_rows(
    run: Run, pair: tuple[str, str], rules: Rules
) -> tuple[list[CrossRow], list[Unpaired]]:
    """A row for every workload in which both variants have numbers, and the rest."""
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
        recorded = _recorded(own, pair)
        if recorded is not None:
            found, untrusted = recorded
        else:
            blocks = _blocks(run) if blocks is None else blocks
            paired, found = pair_variants(run, label, *pair, blocks)
            noisy = ("noisy machine: most pairs were disturbed",) if paired.busy else ()
            reasons = [why for row in own if row.candidate in pair for why in row.untrusted]
            untrusted = tuple(dict.fromkeys((*noisy, *reasons)))
        rows.append(_row(run, label, pair, own, found, untrusted=untrusted, rules=rules))
    return rows, unpaired


def _blocks(run: Run) -> RunBlocks:
    if run.folder.is_file():
        raise UsageError(
            f"{run.folder} holds no samples of {run.id}",
            why="two candidates of one run are paired again from its samples",
            hint="name the run's folder, or compare with the run's baseline",
        )
    return read_blocks(run)


def _recorded(
    own: list[Comparison], pair: tuple[str, str]
) -> tuple[Estimate, tuple[str, ...]] | None:
    """What the run itself found, when one of the two is its baseline."""
    for row in own:
        if row.estimate is not None and {row.baseline, row.candidate} == set(pair):
            return row.estimate, row.untrusted
    return None


def _row(
    run: Run,
    label: str,
    pair: tuple[str, str],
    own: list[Comparison],
    found: Estimate,
    *,
    untrusted: tuple[str, ...],
    rules: Rules,
) -> CrossRow:
    flipped = any(row.candidate == pair[0] and row.baseline == pair[1] for row in own)
    sides = _with_ratio(
        [numbers_of([(run, _row_with(own, name))], name) for name in pair],
        1.0 / found.speedup if flipped else found.speedup,
    )
    effect = effect_of(found)
    if effect is not None and flipped:
        effect = Effect(log=-effect.log, error=effect.error, degrees=effect.degrees)
    reasons = [] if flipped else [text for text in found.reasons if "interval" not in text]
    reasons = list(dict.fromkeys([*found.withheld, *reasons]))
    if effect is None or untrusted:
        ratio = found.speedup if found.launches else None
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
    return CrossRow(
        workload=label,
        one=sides[0],
        other=sides[1],
        support="interleaved",
        basis="pairs",
        alike=True,
        verdict=Verdict.UNDECIDED
        if found.withheld
        else ratio_verdict(effect, confidence=rules.confidence, margin=rules.margin),
        ratio=math.exp(effect.log),
        interval=interval_of(effect, rules.confidence),
        p_value=p_of(effect),
        log_error=effect.error,
        degrees=effect.degrees,
        reasons=tuple(reasons),
    )


def _with_ratio(sides: list[SideNumbers], ratio: float) -> list[SideNumbers]:
    """The sides with times whose ratio is that of their pairs; the geometric mean of both is kept.

    Each time belongs to the side's estimate against the baseline, which is another estimate.
    """
    one, other = (side.time_ns for side in sides)
    if not one or not other or not 0.0 < ratio < math.inf:
        return sides
    middle, root = math.sqrt(one) * math.sqrt(other), math.sqrt(ratio)
    return [replace(sides[0], time_ns=middle * root), replace(sides[1], time_ns=middle / root)]


def _row_with(own: list[Comparison], name: str) -> Comparison:
    """The variant's own comparison; for the baseline, any that has a number of it."""
    judged = [row for row in own if row.candidate == name]
    sound = [row for row in own if state_of(row) == "measured"]
    return (judged or sound or own)[0]


def _state(own: list[Comparison], run: Run, name: str) -> SideState:
    if not own:
        return "absent"
    if name == run.study.baseline.name:
        states = [state_of(row) for row in own]
        sound = any(state in {"measured", "wrong"} for state in states)
        return "measured" if sound else "failed"
    found = [state_of(row) for row in own if row.candidate == name]
    return found[0] if found else "absent"


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
        texts.append("the run did not reach it" if not own else f"{name} {state}{detail}")
    return Unpaired(
        workload=label,
        variants=pair,
        one=states[0],
        other=states[1],
        why="; ".join(dict.fromkeys(texts)),
    )

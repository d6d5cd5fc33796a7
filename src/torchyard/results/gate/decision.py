"""Check comparisons against the limits that a user set.

A limit is exceeded if the whole confidence interval lies beyond it, and kept if the whole
interval lies within it; with many workloads, exceeded limits are corrected for multiple
comparisons. For anything between, not supported by the data, missing or failing, a policy
decides, and the report says so. A workload whose numbers are not trustworthy neither passes nor
fails, and no policy changes that. Compile time and memory are single readings: they are compared
with the limit directly, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from torchyard.errors import NothingToDo, UsageError
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossComparison, CrossRow, Unpaired
from torchyard.results.compare.sides import Rules, Side, describe
from torchyard.results.gate.model import (
    STANDINGS,
    GateLimit,
    GateOutcome,
    GateRow,
    Policy,
    RowAction,
    Standing,
)
from torchyard.results.model import Metric
from torchyard.stats.between_runs import Effect, beyond_p
from torchyard.stats.suite import benjamini_hochberg

__all__ = ["Gate", "compare_inside", "run_gate"]

_PLAIN_TIMES: Final = "plain times of two runs are not interleaved"
_ONE_READING: Final = "one reading on each side, without an interval"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What is asked of the numbers."""

    max_slowdown: float | None = None
    limits: tuple[GateLimit, ...] = ()
    """The last one that fits a workload counts."""
    metric: Metric = "speedup"
    policy: Policy = field(default_factory=Policy)

    def limit_of(self, label: str) -> float | None:
        """How much slower that workload may get; None when nobody said."""
        found = self.max_slowdown
        for limit in self.limits:
            if _fits(label, limit.pattern):
                found = limit.max_slowdown
        return found


def compare_inside(side: Side, rules: Rules) -> CrossComparison:
    """Every candidate of a run against the run's own baseline, or only the one that is named."""
    run = side.newest
    base = run.study.baseline.name
    names = [side.variant] if side.variant is not None else side.candidates
    if not names or names == [base]:
        raise UsageError(
            f"{side.text} has no candidate to judge", hint="name a run that compares variants"
        )
    parts = [
        compare_sides(replace(side, variant=base), replace(side, variant=name), rules)
        for name in names
        if name != base
    ]
    rows = tuple(row for part in parts for row in part.rows)
    return replace(
        parts[0],
        one=describe(side, (base,)),
        other=describe(side, tuple(names)),
        rows=rows,
        unpaired=tuple(item for part in parts for item in part.unpaired),
        facts=tuple(dict.fromkeys(fact for part in parts for fact in part.facts)),
    )


def run_gate(comparison: CrossComparison, gate: Gate) -> GateOutcome:
    """How every workload stands, the gravest first."""
    alpha = 1.0 - comparison.confidence
    rows = [_row(row, gate, alpha) for row in comparison.rows]
    rows = _corrected(rows, alpha)
    rows += [_unpaired(item, gate) for item in comparison.unpaired]
    if not any(row.max_slowdown is not None for row in rows):
        raise NothingToDo(
            f"there is no {gate.metric} of any workload to hold against a limit",
            why=f"{len(rows)} rows were compared, and no limit fits a number of theirs",
            hint="give --max-slowdown, or a pattern such as --limit 'models/*=5%'",
        )
    acted = [replace(row, action=_action(row.standing, gate.policy, row)) for row in rows]
    acted.sort(key=lambda row: STANDINGS.index(row.standing))
    return GateOutcome(
        metric=gate.metric,
        one=comparison.one,
        other=comparison.other,
        rows=tuple(acted),
        facts=comparison.facts,
        policy=gate.policy,
        confidence=comparison.confidence,
    )


def _row(row: CrossRow, gate: Gate, alpha: float) -> GateRow:
    limit = gate.limit_of(row.workload)
    found = GateRow(
        workload=row.workload,
        variants=(row.one.variant, row.other.variant),
        standing="no limit",
        action="pass",
        max_slowdown=limit,
        support=row.support,
        why=row.reasons,
    )
    if not row.trusted:
        slowdown = 1.0 / row.ratio - 1.0 if row.ratio and gate.metric == "speedup" else None
        standing_now: Standing = "untrusted" if limit is not None else "no limit"
        return replace(
            found, standing=standing_now, slowdown=slowdown, why=(*row.untrusted, *found.why)
        )
    if gate.metric in {"compile", "memory"}:
        return _reading(found, row, gate.metric)
    ratio = row.ratio
    if gate.metric == "time" and row.support != "interleaved":
        one, other = row.one.time_ns, row.other.time_ns
        ratio = one / other if one and other else None
        found = replace(found, why=(_PLAIN_TIMES, *found.why), support="not supported")
    found = replace(found, slowdown=1.0 / ratio - 1.0 if ratio else None)
    if found.support == "not supported" or ratio is None or row.log_error is None:
        return replace(found, standing="unsupported" if limit is not None else "no limit")
    if row.interval is not None:
        found = replace(found, low=1.0 / row.interval.high - 1.0, high=1.0 / row.interval.low - 1.0)
    if limit is None:
        return found
    effect = Effect(log=-math.log(ratio), error=row.log_error, degrees=row.degrees or 1.0)
    p_crossed = beyond_p(effect, math.log1p(limit))
    standing: Standing = "undecided"
    if p_crossed <= alpha / 2.0:
        standing = "crossed"
    elif p_crossed >= 1.0 - alpha / 2.0:
        standing = "kept"
    return replace(found, standing=standing, p_crossed=p_crossed)


def _reading(found: GateRow, row: CrossRow, metric: Metric) -> GateRow:
    """Compile time or memory: plain numbers, comparable where everything but the candidate is alike."""
    if metric == "compile":
        before, now = row.one.compile_s, row.other.compile_s
    else:
        before, now = row.one.memory_bytes, row.other.memory_bytes
    if not before and not now:
        return replace(found, max_slowdown=None, why=(f"no {metric} reading on either side",))
    if not before or not now:
        absent = f"no {metric} reading {'before' if not before else 'now'}"
        standing: Standing = "unsupported" if found.max_slowdown is not None else "no limit"
        return replace(found, standing=standing, support="not supported", why=(absent,))
    found = replace(found, slowdown=now / before - 1.0)
    if found.max_slowdown is None:
        return found
    if not row.alike:
        return replace(found, standing="unsupported", support="not supported")
    beyond = now > before * (1.0 + found.max_slowdown)
    return replace(found, standing="crossed" if beyond else "kept", why=(_ONE_READING,))


def _corrected(rows: Sequence[GateRow], alpha: float) -> list[GateRow]:
    """Crossings that do not survive Benjamini-Hochberg over the gate's rows become undecided."""
    tested = [index for index, row in enumerate(rows) if row.p_crossed is not None]
    values = benjamini_hochberg([row.p_crossed for row in rows if row.p_crossed is not None])
    result = list(rows)
    for index, value in zip(tested, values, strict=True):
        row = replace(rows[index], p_crossed=value)
        if row.standing == "crossed" and value > alpha / 2.0:
            text = f"crossed on its own, but not among {len(tested)} workloads (adjusted p {value:.3g})"
            row = replace(row, standing="undecided", why=(*row.why, text))
        result[index] = row
    return result


def _unpaired(item: Unpaired, gate: Gate) -> GateRow:
    bad = {"failed", "wrong", "no number"}
    standing: Standing = "missing"
    if item.other in bad:
        standing = "failing"
    elif item.other == "measured":
        standing = "new"
    why = item.why
    if item.one in bad and item.other in bad:
        why += "; it did not work before either"
    return GateRow(
        workload=item.workload,
        variants=item.variants,
        standing=standing,
        action="pass",
        max_slowdown=gate.limit_of(item.workload),
        why=(why,),
    )


def _action(standing: Standing, policy: Policy, row: GateRow) -> RowAction:
    if standing == "failing" and any("did not work before" in text for text in row.why):
        # Nothing got worse; it is still said.
        return "pass" if policy.on_failing == "pass" else "warn"
    actions: dict[Standing, RowAction] = {
        "crossed": "fail",
        "untrusted": "untrusted",
        "failing": policy.on_failing,
        "unsupported": policy.on_unsupported,
        "missing": policy.on_missing,
        "undecided": policy.on_undecided,
    }
    return actions.get(standing, "pass")


def _fits(label: str, pattern: str) -> bool:
    return fnmatchcase(label, pattern) or fnmatchcase(label.partition(" ")[0], pattern)

"""Check comparisons against the limits that a user set.

A limit is exceeded (`crossed`) if the whole confidence interval is beyond it, and `kept` if the whole
interval is within it; exceeded limits are corrected for multiple comparisons. A policy determines the
action for workloads that are undecided, unsupported, missing or failing. An untrusted workload neither
passes nor fails. Compile time and memory are single readings, which are compared with the limit
directly; the report states this.
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

_UNCHECKED: Final[frozenset[Standing]] = frozenset({"missing", "new", "no limit"})
"""Standings of workloads that were not compared with a limit: a gate must not pass on them alone."""
_PLAIN_TIMES: Final = "times of two runs are not interleaved"
_ONE_READING: Final = "single readings, without a confidence interval"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Limits, metric and policy of a gate."""

    max_slowdown: float | None = None
    limits: tuple[GateLimit, ...] = ()
    """The last matching limit applies."""
    metric: Metric = "speedup"
    policy: Policy = field(default_factory=Policy)

    def limit_of(self, label: str) -> float | None:
        """Return the limit of a workload; None if it has none."""
        max_slowdown = self.max_slowdown
        for limit in self.limits:
            if _matches(limit.pattern, label):
                max_slowdown = limit.max_slowdown
        return max_slowdown

    def unmatched(self, labels: Sequence[str]) -> list[str]:
        """Return the patterns that match none of these workloads, such as misspelled ones."""
        return [
            limit.pattern
            for limit in self.limits
            if not any(_matches(limit.pattern, label) for label in labels)
        ]


def _matches(pattern: str, label: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in (label, label.partition(" ")[0]))


def compare_inside(side: Side, rules: Rules) -> CrossComparison:
    """Compare the candidates of a run, or only the given one, with the run's own baseline."""
    run = side.newest
    base = run.study.baseline.name
    names = [side.variant] if side.variant is not None else side.candidates
    if not names or names == [base]:
        raise UsageError(
            f"{side.text} has no candidate to check", hint="use a run that compares variants"
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
    """Check every workload against its limit; most severe first."""
    alpha = 1.0 - comparison.confidence
    rows = [_row(row, gate, alpha) for row in comparison.rows]
    rows = _corrected(rows, alpha)
    rows += [_unpaired(item, gate) for item in comparison.unpaired]
    if not any(row.max_slowdown is not None for row in rows):
        raise NothingToDo(
            f"no workload has both a limit and a {gate.metric}",
            why=f"{len(rows)} rows were compared",
            hint="use --max-slowdown, or a pattern such as --limit 'models/*=5%'",
        )
    if gate.policy.on_missing != "fail" and all(
        row.standing in _UNCHECKED or row.failed_before for row in rows
    ):
        raise NothingToDo(
            "no workload with a limit was measured in both runs, so nothing was checked",
            why=f"compared {comparison.one.text} and {comparison.other.text}",
            hint="after a change of names, save a new baseline; --require-all fails instead",
        )
    decided = [replace(row, action=_action(row, gate.policy)) for row in rows]
    decided.sort(key=lambda row: STANDINGS.index(row.standing))
    return GateOutcome(
        metric=gate.metric,
        one=comparison.one,
        other=comparison.other,
        rows=tuple(decided),
        facts=comparison.facts,
        policy=gate.policy,
        confidence=comparison.confidence,
    )


def _row(row: CrossRow, gate: Gate, alpha: float) -> GateRow:
    limit = gate.limit_of(row.workload)
    result = GateRow(
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
        untrusted: Standing = "untrusted" if limit is not None else "no limit"
        return replace(
            result, standing=untrusted, slowdown=slowdown, why=(*row.untrusted, *result.why)
        )
    if gate.metric in {"compile", "memory"}:
        return _reading(result, row, gate.metric)
    ratio = row.ratio
    if gate.metric == "time" and row.support != "interleaved":
        one, other = row.one.time_ns, row.other.time_ns
        ratio = one / other if one and other else None
        result = replace(result, why=(_PLAIN_TIMES, *result.why), support="not supported")
    result = replace(result, slowdown=1.0 / ratio - 1.0 if ratio else None)
    if result.support == "not supported" or ratio is None or row.log_error is None:
        return replace(result, standing="unsupported" if limit is not None else "no limit")
    if row.interval is not None:
        result = replace(
            result, low=1.0 / row.interval.high - 1.0, high=1.0 / row.interval.low - 1.0
        )
    if limit is None:
        return result
    effect = Effect(log=-math.log(ratio), error=row.log_error, degrees=row.degrees or 1.0)
    p_crossed = beyond_p(effect, math.log1p(limit))
    standing: Standing = "undecided"
    if p_crossed <= alpha / 2.0:
        standing = "crossed"
    elif p_crossed >= 1.0 - alpha / 2.0:
        standing = "kept"
    return replace(result, standing=standing, p_crossed=p_crossed)


def _reading(result: GateRow, row: CrossRow, metric: Metric) -> GateRow:
    """Check compile time or memory, which are comparable if only the candidate differs."""
    if metric == "compile":
        before, now = row.one.compile_s, row.other.compile_s
    else:
        before, now = row.one.memory_bytes, row.other.memory_bytes
    if not before and not now:
        return replace(result, max_slowdown=None, why=(f"no {metric} reading in either run",))
    if not before or not now:
        missing = f"no {metric} reading {'before' if not before else 'now'}"
        standing: Standing = "unsupported" if result.max_slowdown is not None else "no limit"
        return replace(result, standing=standing, support="not supported", why=(missing,))
    result = replace(result, slowdown=now / before - 1.0)
    if result.max_slowdown is None:
        return result
    if not row.alike:
        return replace(result, standing="unsupported", support="not supported")
    beyond = now > before * (1.0 + result.max_slowdown)
    return replace(result, standing="crossed" if beyond else "kept", why=(_ONE_READING,))


def _corrected(rows: Sequence[GateRow], alpha: float) -> list[GateRow]:
    """Apply Benjamini-Hochberg; limits that are not exceeded afterwards become undecided."""
    tested = [index for index, row in enumerate(rows) if row.p_crossed is not None]
    values = benjamini_hochberg([row.p_crossed for row in rows if row.p_crossed is not None])
    result = list(rows)
    for index, value in zip(tested, values, strict=True):
        row = replace(rows[index], p_crossed=value)
        if row.standing == "crossed" and value > alpha / 2.0:
            text = f"exceeded before the correction for {len(tested)} workloads (adjusted p {value:.3g})"
            row = replace(row, standing="undecided", why=(*row.why, text))
        result[index] = row
    return result


def _unpaired(item: Unpaired, gate: Gate) -> GateRow:
    failing = {"failed", "wrong", "no number"}
    standing: Standing = "missing"
    if item.other in failing:
        standing = "failing"
    elif item.other == "measured":
        standing = "new"
    why = item.why
    failed_before = item.one in failing and item.other in failing
    if failed_before:
        why += "; it also failed before"
    return GateRow(
        workload=item.workload,
        variants=item.variants,
        standing=standing,
        action="pass",
        max_slowdown=gate.limit_of(item.workload),
        why=(why,),
        failed_before=failed_before,
    )


def _action(row: GateRow, policy: Policy) -> RowAction:
    if row.standing == "failing" and row.failed_before:
        # Not a regression, but still reported.
        return "pass" if policy.on_failing == "pass" else "warn"
    actions: dict[Standing, RowAction] = {
        "crossed": "fail",
        "untrusted": "untrusted",
        "failing": policy.on_failing,
        "unsupported": policy.on_unsupported,
        "missing": policy.on_missing,
        "undecided": policy.on_undecided,
    }
    return actions.get(row.standing, "pass")

"""The two sides of a comparison: their names, their numbers, and the rules for a verdict.

A side is one run, or the runs of a baseline, optionally restricted to one variant. For each
workload a side has numbers, whether they are valid, and what rules out a verdict on them.
Read-only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError
from torchyard.machine.identity import machine_name, machine_text
from torchyard.results.baselines import read_baseline, read_baseline_file, runs_of
from torchyard.results.compare.model import (
    Basis,
    CrossRow,
    CrossSide,
    SideNumbers,
    SideState,
    Support,
)
from torchyard.results.run_reader import Run, read_run, revision_of_variant, target_facts
from torchyard.stats.between_runs import SESSION_SD, Effect, interval_of, p_of, ratio_verdict


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Thresholds of a verdict."""

    confidence: float = 0.95
    margin: float = 0.01
    session_sd: float = SESSION_SD


_MIN_LAUNCHES = 2


def supported_row(
    label: str,
    sides: Sequence[SideNumbers],
    effect: Effect,
    rules: Rules,
    *,
    support: Support,
    basis: Basis,
) -> CrossRow:
    """Return the row of a comparison that the data supports."""
    return CrossRow(
        workload=label,
        one=sides[0],
        other=sides[1],
        support=support,
        basis=basis,
        alike=True,
        verdict=ratio_verdict(effect, confidence=rules.confidence, margin=rules.margin),
        ratio=math.exp(effect.log),
        interval=interval_of(effect, rules.confidence),
        p_value=p_of(effect),
        log_error=effect.error,
        degrees=effect.degrees,
    )


def state_of(row: Comparison) -> SideState:
    """Return whether the comparison has a valid number."""
    if row.verdict is Verdict.FAILED:
        return "failed"
    if row.verdict is Verdict.WRONG:
        return "wrong"
    if row.estimate is None or not row.estimate.launches:
        return "no number"
    return "measured"


def row_obstacles(row: Comparison) -> list[str]:
    """Return why the comparison cannot be compared with another run, apart from trust."""
    estimate = row.estimate
    if estimate is None:
        return ["no number"]
    obstacles = []
    if estimate.scope != "launches" or estimate.launches < _MIN_LAUNCHES:
        obstacles.append("one launch does not show the process-to-process variation")
    elif estimate.interval is None:
        obstacles.append("too little data for an interval")
    obstacles.extend(estimate.withheld)
    return obstacles


def numbers_of(sessions: Sequence[tuple[Run, Comparison]], variant: str) -> SideNumbers:
    """Return the numbers of a side: geometric means over sessions, other values of the newest."""
    if not sessions:
        return SideNumbers(variant=variant, sessions=0)
    rows = [row for _, row in sessions]
    newest = rows[-1]
    if newest.candidate != variant:
        return _of_baseline(rows, variant)
    metrics = newest.candidate_metrics
    estimates = [row.estimate for row in rows if row.estimate is not None]
    blocks = sum(row.guards.blocks for row in rows)
    return SideNumbers(
        variant=variant,
        baseline=newest.baseline,
        time_ns=_geometric_mean(row.candidate_metrics.time_ns for row in rows),
        speedup=_geometric_mean(estimate.speedup for estimate in estimates),
        interval=estimates[0].interval if len(rows) == 1 and estimates else None,
        launches=sum(estimate.launches for estimate in estimates),
        sessions=len(rows),
        baseline_ns=_geometric_mean(row.baseline_metrics.time_ns for row in rows),
        compile_s=metrics.compile_cold_s,
        memory_bytes=metrics.peak_memory_bytes,
        dirty_share=sum(row.guards.dirty for row in rows) / blocks if blocks else None,
        trusted=all(row.trusted for row in rows),
    )


def _of_baseline(rows: Sequence[Comparison], variant: str) -> SideNumbers:
    metrics: VariantMetrics = rows[-1].baseline_metrics
    return SideNumbers(
        variant=variant,
        time_ns=_geometric_mean(row.baseline_metrics.time_ns for row in rows),
        sessions=len(rows),
        baseline_ns=_geometric_mean(row.baseline_metrics.time_ns for row in rows),
        compile_s=metrics.compile_cold_s,
        memory_bytes=metrics.peak_memory_bytes,
        trusted=all(row.trusted for row in rows),
    )


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    positive = [value for value in values if value is not None and value > 0]
    if not positive:
        return None
    return math.exp(math.fsum(map(math.log, positive)) / len(positive))


BASELINE_PREFIX: Final = "baseline:"
VARIANT_MARK: Final = "#"

FindRun = Callable[[str], Path]
"""Resolve the name of a run to its folder."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison."""

    text: str
    runs: tuple[Run, ...]
    """Oldest first."""
    variant: str | None = None

    @property
    def newest(self) -> Run:
        """The run whose facts are used for the side."""
        return self.runs[-1]

    @property
    def candidates(self) -> list[str]:
        """Names of the candidates, without duplicates."""
        names = [row.candidate for run in self.runs for row in run.comparisons]
        planned = [variant.name for run in self.runs for variant in run.study.candidates]
        return list(dict.fromkeys([*names, *planned]))


def choose_side(text: str, *, find: FindRun, beside: Side | None = None) -> Side:
    """Resolve the text to a side; `#VARIANT` alone refers to the run of `beside`."""
    run_text, mark, variant = text.partition(VARIANT_MARK)
    if mark and Path(text).expanduser().exists():
        run_text, mark, variant = text, "", ""
    if mark and not variant:
        raise UsageError(f"{text!r} names no variant", hint="use RUN#VARIANT, such as latest#amp")
    if not run_text:
        if beside is None:
            raise UsageError(f"{text!r} names no run", hint="use RUN#VARIANT, or `latest`")
        runs = beside.runs
    else:
        runs = _runs(run_text, find)
    ordered = tuple(sorted(runs, key=lambda run: str(run.info.get("started") or "")))
    side = Side(text=text, runs=ordered, variant=variant or None)
    names = [variant.name for run in side.runs for variant in run.study.variants]
    if side.variant is not None and side.variant not in names:
        raise UsageError(
            f"{side.text}: there is no variant {side.variant!r}",
            hint=nearest_hint(side.variant, list(dict.fromkeys(names)), what="variant"),
        )
    return side


def match_variants(one: Side, other: Side) -> list[tuple[str, str]]:
    """Match the variants of both sides by name, or the only variant of each side."""
    if one.variant is not None and other.variant is not None:
        return [(one.variant, other.variant)]
    names_one = [one.variant] if one.variant is not None else one.candidates
    names_other = [other.variant] if other.variant is not None else other.candidates
    common = [(name, name) for name in names_one if name in names_other]
    if common:
        return common
    if len(names_one) == len(names_other) == 1:
        return [(names_one[0], names_other[0])]
    raise UsageError(
        f"{one.text} and {other.text} have no variant in common",
        why=f"A has {', '.join(names_one) or 'none'}; B has {', '.join(names_other) or 'none'}",
        hint="give the variants as RUN#VARIANT",
    )


def describe(side: Side, variants: tuple[str, ...]) -> CrossSide:
    """Return the description of the side for reports."""
    run = side.newest
    by_name = {variant.name: variant for variant in run.study.variants}
    chosen = [by_name[name] for name in variants if name in by_name]
    torch = [str(target_facts(run.info, variant).get("torch") or "") for variant in chosen]
    revisions = [revision_of_variant(run.info, variant) for variant in chosen]
    return CrossSide(
        text=side.text,
        runs=tuple(one.id for one in side.runs),
        variants=variants,
        started=str(run.info.get("started") or ""),
        machine=machine_name(run.info),
        machine_text=machine_text(run.info),
        torch=", ".join(dict.fromkeys(filter(None, torch))),
        revision=", ".join(dict.fromkeys(filter(None, revisions))),
    )


def _runs(text: str, find: FindRun) -> tuple[Run, ...]:
    if text.startswith(BASELINE_PREFIX):
        return runs_of(read_baseline(text.removeprefix(BASELINE_PREFIX)))
    path = Path(text).expanduser()
    if path.is_file():
        return read_baseline_file(path)
    return (read_run(find(text)),)

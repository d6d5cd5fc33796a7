"""Change one decision of the compiler at a time, and measure what it is worth.

Each change is a variant of its own, compared with the unchanged candidate as in `torchyard bench`:
settings of Inductor, and eager kernels for the operators that contribute most to the difference. A
change that is faster is confirmed by a second comparison, because the best of several is often so
by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.events import Listener
from torchyard.core.study import Budget, Scalar, Study, Variant
from torchyard.errors import UsageError
from torchyard.why.model import Ablation, Attribution, Part
from torchyard.worker.bench.backend_names import is_user_function, uses_inductor
from torchyard.worker.bench.options import EAGER_KERNEL, as_text

SETTINGS: Final[tuple[tuple[str, str, Scalar], ...]] = (
    ("no fusion of kernels", "inductor.max_fusion_size", 1),
    ("no vectorization", "inductor.cpp.simdlen", 1),
    ("no tiling heuristics", "inductor.cpp.enable_tiling_heuristics", False),
    ("no pattern matching passes", "inductor.pattern_matcher", False),
    ("no layout optimization", "inductor.layout_optimization", False),
    ("C++ instead of Python wrapper", "inductor.cpp_wrapper", True),
)
MOST_OPERATORS: Final = 3
SMALLEST_SHARE: Final = 0.01
"""Operators of parts that lose less than this share of the candidate's time are not tried."""
_LIBRARY: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "linear"}
)
"""Operators that Inductor calls as library kernels anyway."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A variant with one decision changed."""

    what: str
    option: str
    variant: Variant


def check_candidate(candidate: Variant) -> None:
    """Raise UsageError for a candidate without decisions of Inductor."""
    if is_user_function(candidate.backend) or not uses_inductor(candidate.backend):
        raise UsageError(
            f"--compiler needs a candidate that Inductor compiles, and {candidate.name} is not one",
            hint="remove --compiler, or choose another row with --row",
        )


def changes_of(candidate: Variant, result: Attribution) -> list[Change]:
    """Return the changes to try; first the operators that make the candidate slower."""
    options = [
        (f"eager kernel for {operators}", EAGER_KERNEL, operators)
        for operators in operators_to_keep(result.parts)
    ]
    changes = []
    for what, name, value in (*options, *SETTINGS):
        if any(name == own for own, _ in candidate.options):
            continue
        pair: tuple[str, Scalar] = (name, value)
        changed = replace(
            candidate,
            name=f"{candidate.name}+{as_text(dict([pair]))}",
            options=tuple(sorted((*candidate.options, pair))),
        )
        changes.append(Change(what=what, option=as_text(dict([pair])), variant=changed))
    return changes


def operators_to_keep(parts: Sequence[Part]) -> list[str]:
    """Return the operators of the parts that the compiler makes slower, most costly first."""
    names: list[str] = []
    limit_ns = SMALLEST_SHARE * sum(part.candidate_ns for part in parts)
    for part in sorted(parts, key=lambda one: -one.difference_ns):
        if part.kind != "operators" or part.difference_ns <= max(0.0, limit_ns):
            continue
        operators = sorted({source.operator for source in part.sources} - _LIBRARY)
        text = ",".join(operators)
        if text and text not in names:
            names.append(text)
    return names[:MOST_OPERATORS]


def ablate(
    study: Study,
    row: Comparison,
    result: Attribution,
    *,
    seconds: float,
    folder: Path,
    command: Sequence[str],
    listener: Listener,
) -> tuple[Ablation, ...]:
    """Measure all changes against the unchanged candidate, then confirm the best one."""
    baseline, candidate = (
        next(one for one in study.variants if one.name == name)
        for name in (row.baseline, row.candidate)
    )
    changes = changes_of(candidate, result)

    def measured(name: str, variants: Sequence[Variant], time_s: float) -> dict[str, Comparison]:
        budget = Budget(time_s=time_s, alpha=study.budget.alpha)
        own = replace(
            study,
            name=name,
            baseline=candidate,
            candidates=tuple(variants),
            workloads=(row.workload,),
            budget=budget,
        )
        rows = run_bench(own, folder=folder / name, command=command, listener=listener)
        return {one.candidate: one for one in rows}

    rows = measured("changes", [*(one.variant for one in changes), baseline], seconds)
    unchanged = _speedup(rows.get(baseline.name))
    ablations = [_ablation(one, rows.get(one.variant.name), unchanged) for one in changes]
    best = max(ablations, key=lambda one: one.effect or 0.0)
    if best.verdict == Verdict.FASTER.value:
        change = next(one for one in changes if one.option == best.option)
        again = measured("confirmation", [change.variant, baseline], seconds / 2)
        confirmed = _ablation(
            change, again.get(change.variant.name), _speedup(again.get(baseline.name))
        )
        confirmed = replace(confirmed, confirmed=confirmed.verdict == Verdict.FASTER.value)
        ablations[ablations.index(best)] = confirmed
    return tuple(sorted(ablations, key=lambda one: -(one.effect or 0.0)))


def _speedup(row: Comparison | None) -> float | None:
    return None if row is None or row.estimate is None else row.estimate.speedup


def _ablation(change: Change, row: Comparison | None, unchanged: float | None) -> Ablation:
    """Return the effect of a change; `unchanged` is the speedup of the baseline over the candidate."""
    estimate = None if row is None else row.estimate
    if row is None or estimate is None:
        why = "not measured" if row is None or row.failure is None else row.failure.message
        return Ablation(change=change.what, option=change.option, verdict="failed", why_not=why)
    interval = estimate.interval
    return Ablation(
        change=change.what,
        option=change.option,
        verdict=row.state.value,
        effect=estimate.speedup,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        speedup=None if unchanged is None else estimate.speedup / unchanged,
        unchanged_speedup=None if unchanged is None else 1.0 / unchanged,
    )

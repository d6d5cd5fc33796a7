"""Measure what a fix gains: the operator as it is against the fixed operator, in pairs.

Each finding whose fix can be simulated becomes a workload file with two variants, and `bench`
compares them like any other pair: fresh launches, random order, guards, confidence intervals.
Gradients that are zeroed and then accumulated into are different: that fix belongs to the whole
program, so whole runs are paired.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Comparison, Interval
from torchyard.core.events import Event
from torchyard.core.study import Budget, MeasureSettings, Study, Variant, Workload
from torchyard.stats.estimate import estimate
from torchyard.values.model import ProfileRequest, Saving, ValueFinding, ValueProfile, Worth
from torchyard.values.prices import OF_WHOLE_STEPS
from torchyard.values.target_run import run_natively

PAIR_FILE: Final = (
    '"""A finding and its fix, for `torchyard bench`."""\n\n'
    "from torchyard.worker.values.pricing.fix_timing import make, fixed  # noqa: F401\n"
)
GAIN_BUDGET: Final = Budget(time_s=20.0, precision_goal=0.02, min_launches=3, max_launches=12)
PROGRAM_LAUNCHES: Final = 3
_ZEROED_GRADIENT: Final = "gradient zeroed only to be added to"


def with_fix(profile: ValueProfile) -> list[int]:
    """Return the indices of findings whose fix can be simulated on their operator."""
    return [n for n, finding in enumerate(profile.findings) if finding.recipe.get("fix")]


def zeroed_gradients(profile: ValueProfile) -> list[int]:
    """Return the indices of findings that `zero_grad(set_to_none=True)` fixes."""
    return [
        number
        for number, finding in enumerate(profile.findings)
        if finding.detail.startswith(_ZEROED_GRADIENT)
    ]


def measure_gains(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    chosen: Sequence[int] | None = None,
    budget: Budget = GAIN_BUDGET,
) -> ValueProfile:
    """Compare the operator of each finding with and without its fix; keep the run folder `gains`."""
    numbers = with_fix(profile) if chosen is None else list(chosen)
    if not numbers:
        return profile
    scratch = folder / "fixes"
    scratch.mkdir(exist_ok=True)
    pair = scratch / "pair.py"
    pair.write_text(PAIR_FILE, encoding="utf-8")
    workloads = []
    for number in numbers:
        recipe = scratch / f"finding-{number}.json"
        recipe.write_text(json.dumps(profile.findings[number].recipe), encoding="utf-8")
        workloads.append(_workload(pair, recipe, profile.device))
    rows = run_bench(
        _study(request, profile, pair, workloads, budget),
        folder=folder / "gains",
        command=("torchyard", "values"),
        listener=lambda event: _forward(event, say),
    )
    findings = list(profile.findings)
    for number, row in zip(numbers, rows, strict=True):
        findings[number] = _with_gain(findings[number], row)
    return replace(profile, findings=tuple(findings))


def measure_set_to_none(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    launches: int = PROGRAM_LAUNCHES,
) -> ValueProfile:
    """Run the program with gradients set to zero and to None in turns, and compare its steps."""
    numbers = zeroed_gradients(profile)
    if not numbers or profile.state != "finished":
        return profile
    pairs = []
    for number in range(launches):
        say(f"steps with and without zeroed gradients: run {number + 1} of {launches}")
        pairs.append(_step_effects(request, folder, profile, number))
    if not any(pairs):
        return _without_gain(profile, numbers, "the program has too few steps to compare")
    budget = Budget(precision_goal=0.0, min_launches=min(2, launches), max_launches=launches)
    outcome = estimate(pairs, looks=(), budget=budget)
    how = (
        f"{OF_WHOLE_STEPS}, in turns with zero_grad(set_to_none=True): "
        f"{outcome.pairs} pairs over {outcome.launches} launches"
    )
    findings = list(profile.findings)
    for number in numbers:
        worth = replace(
            findings[number].worth,
            gain=outcome.speedup,
            gain_interval=outcome.interval,
            method=_joined(findings[number].worth.method, how),
        )
        if len(numbers) == 1 and outcome.interval is not None:
            worth = with_measured_saving(worth, outcome.interval, profile.step_ns)
        findings[number] = replace(findings[number], worth=worth)
    return replace(profile, findings=tuple(findings))


def with_measured_saving(worth: Worth, interval: Interval, step_ns: float | None) -> Worth:
    """Replace the estimate by what whole steps with the fix have saved (at least nothing); the bound stays."""
    low, high = (max(0.0, 1 - 1 / end) for end in (interval.low, interval.high))
    bound = None if worth.saving is None else worth.saving.bound_share
    saving = Saving(
        low_ns=low * (step_ns or 0.0),
        high_ns=high * (step_ns or 0.0),
        low_share=low,
        high_share=high,
        bound_ns=None if bound is None else max(bound, high) * (step_ns or 0.0),
        bound_share=None if bound is None else max(bound, high),
        clock="wall time, measured with the fix applied",
        calls=0.0 if worth.saving is None else worth.saving.calls,
    )
    return replace(
        worth,
        saving=saving,
        per_step_ns=(saving.low_ns + saving.high_ns) / 2,
        share_of_step=(low + high) / 2,
    )


def _workload(pair: Path, recipe: Path, device: str) -> Workload:
    return Workload(
        suite="file", name=str(pair), device=device, parameters=(("recipe", str(recipe)),)
    )


def _study(
    request: ProfileRequest,
    profile: ValueProfile,
    pair: Path,
    workloads: Sequence[Workload],
    budget: Budget,
) -> Study:
    as_it_is = Variant(name="as it is", target=request.target, environment=request.environment)
    return Study(
        name="gains",
        baseline=as_it_is,
        candidates=(replace(as_it_is, name="fixed", backend=f"{pair}:fixed"),),
        workloads=tuple(workloads),
        budget=budget,
        settings=MeasureSettings(threads=profile.threads or None),
    )


def _with_gain(finding: ValueFinding, row: Comparison) -> ValueFinding:
    worth = finding.worth
    if row.failure is not None or row.estimate is None or not row.estimate.launches:
        why = row.failure.message if row.failure is not None else "no pair could be used"
        return replace(finding, worth=replace(worth, unavailable=f"gain: {why}"))
    if not row.trusted:
        why = f"untrusted: {row.untrusted[0]}"
        return replace(finding, worth=replace(worth, unavailable=f"gain: {why}"))
    how = f"in pairs, over {row.estimate.launches} launches: {finding.recipe.get('fix', '')}"
    return replace(
        finding,
        worth=replace(
            worth,
            gain=row.estimate.speedup,
            gain_interval=row.estimate.interval,
            method=_joined(worth.method, how),
        ),
    )


def _without_gain(profile: ValueProfile, numbers: Sequence[int], why: str) -> ValueProfile:
    findings = list(profile.findings)
    for number in numbers:
        worth = replace(findings[number].worth, unavailable=f"gain: {why}")
        findings[number] = replace(findings[number], worth=worth)
    return replace(profile, findings=tuple(findings))


def _step_effects(
    request: ProfileRequest, folder: Path, profile: ValueProfile, number: int
) -> list[float]:
    """Return the log speedups of the pairs of steps of one run."""
    run = run_natively(
        request,
        folder,
        name=f"turns-{number}",
        profiled_s=profile.seconds,
        turns=True,
        seed=number,
    )
    turns = () if run is None else run.turns_ns
    return [math.log(zeroed / dropped) for zeroed, dropped in turns]


def _joined(before: str, more: str) -> str:
    return f"{before}; gain: {more}" if before else f"gain: {more}"


def _forward(event: Event, say: Callable[[str], None]) -> None:
    if event.kind in {"workload", "look", "comparison", "warning"}:
        say(event.text)

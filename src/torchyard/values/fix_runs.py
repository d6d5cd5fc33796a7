"""Confirm the largest findings by running the program with the fix applied.

Programs with optimizer steps alternate steps with and without the fix in each launch; of other programs
whole runs are paired. The interception is present in both variants. The results of both must be equal:
otherwise, or where they cannot be compared, the fix is reported as not confirmed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Interval
from torchyard.core.study import Budget
from torchyard.stats.estimate import estimate
from torchyard.values.fixes import NO_FIX, Fix, fix_of, same_results
from torchyard.values.model import FixMeasurement, ProfileRequest, ValueProfile, Worth
from torchyard.values.target_run import NativeRun, ProgramEnd, run_in_target, run_natively

MOST_FIXES: Final = 3
LAUNCHES: Final = 4
"""Launches with alternating steps, or pairs of whole runs, for each finding."""
TIME_BUDGET_S: Final = 600.0
"""After it no further finding is begun, and no further launch beyond the two that an interval needs."""
PRINTED: Final = "printed text"
"""The kind of result that may tell the time (`worker/values/pricing/observed_results.py`)."""
Launch = Callable[..., ProgramEnd]
_REFERENCES: Final = 2
_LEAST_LAUNCHES: Final = 2


def with_fixes(profile: ValueProfile, most: int = MOST_FIXES) -> list[tuple[int, Fix]]:
    """Return the findings with the largest estimated savings whose fix can be applied."""
    candidates = []
    for number, finding in enumerate(profile.findings):
        fix, saving = fix_of(finding), finding.worth.saving
        if fix is not None:
            candidates.append((saving.high_share if saving else 0.0, number, fix))
    candidates.sort(key=lambda one: (-one[0], one[1]))
    return [(number, fix) for _, number, fix in candidates[:most]]


def runs_for_fixes(profile: ValueProfile) -> int:
    """Return how many runs of the program the fixes take at most."""
    if profile.state != "finished" or profile.compiled:
        return 0
    each = 1 + LAUNCHES if profile.steps > 1 else 2 * LAUNCHES
    fixes = len(with_fixes(profile))
    return _REFERENCES + each * fixes if fixes else 0


def measure_fixes(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    launch: Launch = run_in_target,
    launches: int = LAUNCHES,
    budget_s: float = TIME_BUDGET_S,
) -> ValueProfile:
    """Return the profile with the measured saving of its largest findings."""
    fixes = with_fixes(profile)
    if not fixes or profile.state != "finished" or profile.compiled:
        return profile
    runs = _Runs(
        request=request,
        folder=folder,
        profile=profile,
        launch=launch,
        end_s=time.monotonic() + budget_s,
    )
    say("running the program twice for reference: its results with and without fixes are compared")
    why = runs.take_references()
    findings = list(profile.findings)
    measured_by_plan: dict[str, FixMeasurement] = {}
    for number, fix in fixes:
        finding, plan = findings[number], repr(fix.plan)
        if plan in measured_by_plan:
            measured = measured_by_plan[plan]
        elif runs.over:
            measured = FixMeasurement(fix=fix.text, why="the time budget was used up")
        elif why:
            measured = FixMeasurement(fix=fix.text, why=why)
        else:
            where = f"{finding.operator} at line {finding.place.line}"
            say(f"running the program with a fix applied: {where}, {fix.text}")
            measured = measured_by_plan[plan] = runs.measure(number, fix, launches)
        findings[number] = replace(finding, worth=with_fix_measurement(finding.worth, measured))
    return _with_total(replace(profile, findings=tuple(findings)))


def _with_total(profile: ValueProfile) -> ValueProfile:
    """Raise the bound of all findings together to the largest saving that was measured."""
    total = profile.saving
    shares = [
        one.worth.measured.share or 0.0
        for one in profile.findings
        if one.worth.measured is not None and one.worth.measured.confirmed
    ]
    most = max(shares, default=0.0)
    if total is None or total.bound_share is None or total.bound_share >= most:
        return profile
    scale = most / total.bound_share if total.bound_share else 0.0
    bound_ns = None if total.bound_ns is None else total.bound_ns * scale
    return replace(profile, saving=replace(total, bound_share=most, bound_ns=bound_ns))


def with_fix_measurement(worth: Worth, measured: FixMeasurement) -> Worth:
    """Attach a measurement; a saving beyond the upper bound corrects the bound and is flagged."""
    saving = worth.saving
    if measured.confirmed and measured.share is not None and saving is not None:
        bound = saving.bound_share
        if bound is not None and measured.share > bound:
            scale = measured.share / bound if bound else 0.0
            bound_ns = None if saving.bound_ns is None else saving.bound_ns * scale
            saving = replace(saving, bound_share=measured.share, bound_ns=bound_ns)
            measured = replace(measured, exceeded_bound=bound)
    return replace(worth, measured=measured, saving=saving)


@dataclass(kw_only=True)
class _Runs:
    """Runs of one program, and the results that runs without a fix have shown."""

    request: ProfileRequest
    folder: Path
    profile: ValueProfile
    launch: Launch
    end_s: float
    reference: NativeRun | None = None
    kinds: list[str] = field(default_factory=list)
    """Kinds of results that are the same in every run without a fix."""

    @property
    def over(self) -> bool:
        """Whether the time budget is used up."""
        return time.monotonic() > self.end_s

    def take_references(self) -> str:
        """Run the program without a fix; why its results cannot be compared, or an empty string."""
        runs = [self._run(f"reference-{n}", NO_FIX) for n in range(_REFERENCES)]
        finished = [run for run in runs if run is not None and run.state == "finished"]
        if len(finished) < _REFERENCES:
            return "the program does not finish when it is run again without a fix"
        self.reference, again = finished
        same = same_results(self.reference.observed, again.observed)
        self.kinds = [kind for kind, difference in same.items() if not difference]
        shown = [
            kind
            for kind, result in self.reference.observed.items()
            if kind != PRINTED or result["numbers"]
        ]
        if not shown:
            return (
                "the program shows no results to compare: it prints no numbers, reads no values "
                "from tensors and has no optimizer"
            )
        # Printed text may tell the time; other results must not differ.
        unlike = [kind for kind in same if kind not in self.kinds]
        if not self.kinds or any(kind != PRINTED for kind in unlike):
            return (
                f"results differ from run to run without any fix ({', '.join(unlike)}), so it "
                "cannot be checked that the fix keeps them"
            )
        return ""

    def measure(self, number: int, fix: Fix, launches: int) -> FixMeasurement:
        """Measure one fix: results first, then time."""
        base = FixMeasurement(fix=fix.text, compared=tuple(self.kinds))
        steps = self.reference is not None and self.reference.steps > 1
        effects: list[list[float]] = []
        differences: dict[str, str] = {}
        by_cpu, applied = False, 0
        if steps:
            fixed = self._run(f"fixed-{number}", fix.plan, fix_on=True)
            why, differences = self._check(fixed, fix)
            if why or fixed is None:
                return replace(base, why=why)
            applied, by_cpu = fixed.fix_applied, fixed.by_cpu
        for launch in range(launches):
            if self.over and launch >= _LEAST_LAUNCHES:
                break
            take = self._turns if steps else self._pair
            why, seen, log_ratios = take(number, launch, fix)
            if why:
                return replace(base, why=why)
            effects.append(log_ratios)
            if not steps and seen is not None:
                differences = self._check(seen, fix)[1]
                applied, by_cpu = seen.fix_applied, seen.by_cpu
        if not any(effects):
            return replace(base, why="the program has too few steps to compare")
        rounded = next((text for text in differences.values() if text), "")
        return _estimated(base, effects, by_cpu=by_cpu, applied=applied, rounded=rounded)

    def _turns(
        self, number: int, launch: int, fix: Fix
    ) -> tuple[str, NativeRun | None, list[float]]:
        """Alternate steps with and without the fix in one launch."""
        run = self._run(f"turns-{number}-{launch}", fix.plan, turns=True, seed=launch)
        why, _ = self._check(run, fix)
        if why or run is None:
            return why, run, []
        return "", run, [math.log(plain / fixed) for plain, fixed in run.turns_ns]

    def _pair(
        self, number: int, launch: int, fix: Fix
    ) -> tuple[str, NativeRun | None, list[float]]:
        """Run the whole program with and without the fix; the order changes from pair to pair."""
        runs: dict[bool, NativeRun] = {}
        order = (False, True) if launch % 2 == 0 else (True, False)
        for on in order:
            name = f"{'fixed' if on else 'plain'}-{number}-{launch}"
            run = self._run(name, fix.plan, fix_on=on)
            if run is None or run.state != "finished":
                return self._check(run, fix)[0] or "the program did not finish", run, []
            runs[on] = run
        why, _ = self._check(runs[True], fix)
        if why:
            return why, runs[True], []
        plain, fixed = (
            run.program_cpu_ns if run.by_cpu else run.program_ns
            for run in (runs[False], runs[True])
        )
        return "", runs[True], [math.log(plain / fixed)] if plain > 0 and fixed > 0 else []

    def _check(self, run: NativeRun | None, fix: Fix) -> tuple[str, dict[str, str]]:
        """Return why a run with the fix confirms nothing, and how its results differ."""
        if run is None:
            return "with the fix the program left no result", {}
        if run.state != "finished":
            return f"with the fix the program exits with code {run.exit_code}", {}
        if not run.fix_applied:
            return "no call of the program matched the fix", {}
        if self.reference is None:
            return "there is no run without the fix", {}
        same = same_results(self.reference.observed, run.observed, rounds=fix.rounds)
        differences = {kind: same.get(kind, "differs") for kind in self.kinds}
        wrong = [kind for kind, text in differences.items() if text.startswith("differs")]
        if wrong:
            return f"with the fix the results differ: {', '.join(wrong)}", differences
        return "", differences

    def _run(self, name: str, plan: dict[str, Any], **more: Any) -> NativeRun | None:
        return run_natively(
            self.request,
            self.folder,
            name=name,
            profiled_s=self.profile.seconds,
            launch=self.launch,
            fix=plan,
            **more,
        )


def _estimated(
    base: FixMeasurement,
    effects: Sequence[Sequence[float]],
    *,
    by_cpu: bool,
    applied: int,
    rounded: str,
) -> FixMeasurement:
    """Return the saving from log speedups of pairs, by launch."""
    budget = Budget(
        precision_goal=0.0,
        min_launches=min(_LEAST_LAUNCHES, len(effects)),
        max_launches=max(_LEAST_LAUNCHES, len(effects)),
    )
    outcome = estimate([list(one) for one in effects], looks=(), budget=budget)
    interval = outcome.interval
    return replace(
        base,
        confirmed=True,
        share=1 - 1 / outcome.speedup,
        interval=None
        if interval is None
        else Interval(
            low=1 - 1 / interval.low, high=1 - 1 / interval.high, confidence=interval.confidence
        ),
        clock="CPU time" if by_cpu else "wall time",
        pairs=outcome.pairs,
        launches=outcome.launches,
        applied=applied,
        rounded=rounded,
    )

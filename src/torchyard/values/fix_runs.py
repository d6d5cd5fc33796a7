"""Confirm the largest findings by running the program with the fix applied.

Programs with optimizer steps alternate steps with and without the fix in each launch; of other programs
whole runs are paired. The interception is present in both variants. The results of both must be equal:
otherwise, or where they cannot be compared, the fix is reported as not confirmed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Interval
from torchyard.core.study import Budget
from torchyard.stats.estimate import estimate
from torchyard.values.model import (
    Certainty,
    FixMeasurement,
    ProfileRequest,
    ValueFinding,
    ValueProfile,
    Worth,
)
from torchyard.values.target_run import NativeRun, ProgramEnd, run_in_target, run_natively

NO_FIX: Final[dict[str, Any]] = {"kind": "none", "lines": []}
"""Run the program with its results observed and nothing changed."""
ROUNDING: Final = 1e-5
"""Largest difference of two results, relative to their magnitude, that counts as rounding."""
PRINTED_ROUNDING: Final = 1e-3
"""The same for numbers in printed text, which have few digits."""
_DEAD: Final = "dead initialisation"
_REDUNDANT: Final = "redundant write"
_GUARD: Final = "guard that never fires"
_DUPLICATE: Final = "duplicate"
_UNCHANGED: Final = "unchanged across steps"
_ADDED: Final = "zeroed only to be added to"
_COPY: Final = "a copy, and neither"
_OWN_INPUT: Final = "the same bits as its own input"
_WITHOUT_FIX: Final = ("a check that every element passed", "copied values that were overwritten")
"""Findings whose fix needs more of the source than the call."""
_FRESH: Final = frozenset(
    {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like"}
    | {"new_zeros", "new_ones", "new_full"}
)
_WRITES: Final = {
    "fill_": ("__setitem__",),
    "copy_": ("__setitem__",),
    "index_put_": ("__setitem__",),
    "masked_fill_": ("__setitem__",),
}
_COPIES: Final = ("clone", "contiguous", "to", "reshape", "detach_copy")
_GUARD_POSITIONS: Final = {"where": [1, 2], "minimum": [0, 1], "maximum": [0, 1]}

Results = Mapping[str, Mapping[str, Any]]
"""What a run has shown, by kind (`worker/values/pricing/applied_fix.py`)."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """How to fix a finding mechanically."""

    plan: dict[str, Any]
    text: str
    rounds: bool = False
    """Whether it may change the order of additions in a backward pass."""


def fix_of(finding: ValueFinding) -> Fix | None:
    """Return the fix of a finding; None where no mechanism can apply one."""
    if finding.path or finding.place.backward:
        return None
    if finding.proof.certainty is Certainty.INPUT_DEPENDENT and finding.pattern != _GUARD:
        return None
    calls = [
        call
        for call in finding.recipe.get("calls", ())
        if not call["backward"] and call["role"] not in {"shrinks", "reads", "inside"}
    ]
    name = finding.operator.removeprefix("aten::")
    lines = {(call["file"], call["line"]) for call in calls if call["role"] == "wasted"}
    lines.add((finding.place.file, finding.place.line))
    if finding.pattern == _DEAD:
        return _of_dead_fill(finding, name, sorted(lines))
    if finding.pattern == _REDUNDANT:
        if finding.evidence.get("unchanged_share", 1.0) < 1.0:
            return None
        return _skip(finding, name, sorted(lines))
    if finding.detail.startswith(_WITHOUT_FIX):
        return None
    if finding.pattern == _GUARD or finding.detail.startswith((_COPY, _OWN_INPUT)):
        return _argument(finding, name, sorted(lines))
    if finding.pattern in {_DUPLICATE, _UNCHANGED}:
        lines |= {(call["file"], call["line"]) for call in calls}
        within = finding.pattern == _DUPLICATE
        plan: dict[str, Any] = {"kind": "reuse", "lines": sorted(lines), "per_step": within}
        where = "within a step" if within else "across steps"
        return Fix(plan=plan, text=f"earlier results reused {where}", rounds=within)
    return None


def same_results(one: Results, other: Results, *, rounds: bool = False) -> dict[str, str]:
    """Compare kinds of results: empty for equal bits, else how they differ; `rounds` accepts rounding."""
    differences = {}
    for kind in sorted({*one, *other}):
        mine, others = one.get(kind), other.get(kind)
        if mine is None or others is None:
            differences[kind] = "differs: only one run has it"
        elif mine["digest"] == others["digest"]:
            differences[kind] = ""
        else:
            apart = _apart(mine, others)
            close = rounds and apart <= (PRINTED_ROUNDING if "form" in mine else ROUNDING)
            differences[kind] = f"equal up to rounding ({apart:.1g})" if close else "differs"
    return differences


def _skip(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    if not name.endswith("_"):
        return None
    names = [name, *_WRITES.get(name, ()), f"__i{name.rstrip('_')}__"]
    return Fix(
        plan={"kind": "skip", "lines": lines, "names": names, "shapes": _shapes(finding)},
        text="the write left out",
    )


def _of_dead_fill(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    if finding.detail.startswith("gradient "):
        return None  # compared by `zero_grad(set_to_none=True)`
    if finding.detail.startswith(_ADDED):
        added = finding.evidence.get("added_by")
        if not isinstance(added, dict):
            return None
        names = [name] if name in _FRESH else [name, *_WRITES.get(name, ())]
        plan = {"kind": "copy", "lines": lines, "names": names}
        plan["added_lines"] = [(added.get("file"), added.get("line"))]
        return Fix(plan=plan, text="the zeros left out, and copied instead of added")
    if name in _FRESH:
        return Fix(
            plan={"kind": "empty", "lines": lines, "names": [name]},
            text="memory allocated without filling it",
        )
    return _skip(finding, name, lines)


def _argument(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    bare = name.rstrip("_")
    if finding.pattern == _GUARD:
        names = [name, bare, f"{bare}_", {"clamp": "clip", "hardtanh": "relu6"}.get(bare, bare)]
    elif finding.detail.startswith(_OWN_INPUT):
        names = [name, f"__{bare}__", f"__r{bare}__"]
    else:
        names = list(_COPIES)
    plan = {
        "kind": "argument",
        "lines": lines,
        "names": sorted(set(names)),
        "positions": _GUARD_POSITIONS.get(bare, [0]),
        "shape": list(finding.shape),
        "dtype": finding.dtype,
    }
    return Fix(plan=plan, text="the argument used instead of the equal result")


def _shapes(finding: ValueFinding) -> list[str]:
    calls = finding.recipe.get("calls", ())
    return sorted({call["shapes"] for call in calls if call["operator"] == finding.operator})


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest relative difference of two results; infinite if they have another form."""
    if one.get("form") != other.get("form") or one.get("count") != other.get("count"):
        return math.inf
    return _largest(one.get("numbers", ()), other.get("numbers", ()), one.get("scales"))


def _largest(one: Any, other: Any, scales: Any) -> float:
    if not one or len(one) != len(other):
        return math.inf
    apart = 0.0
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        scale = scales[number] if scales else max(abs(first), abs(second))
        difference = abs(first - second)
        if not math.isfinite(difference):
            return math.inf
        apart = max(apart, difference / scale if scale else difference)
    return apart


MOST_FIXES: Final = 3
LAUNCHES: Final = 4
"""Launches with alternating steps, or pairs of whole runs, for each finding."""
TIME_BUDGET_S: Final = 600.0
"""After it no further finding is begun, and no further launch beyond the two that an interval needs."""
PRINTED: Final = "printed text"
"""The kind of result that may tell the time (`worker/values/pricing/applied_fix.py`)."""
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
            why, observed, log_ratios = take(number, launch, fix)
            if why:
                return replace(base, why=why)
            effects.append(log_ratios)
            if not steps and observed is not None:
                differences = self._check(observed, fix)[1]
                applied, by_cpu = observed.fix_applied, observed.by_cpu
        if not any(effects):
            return replace(base, why="the program has too few steps to compare")
        rounded = next((text for text in differences.values() if text), "")
        return estimated(base, effects, by_cpu=by_cpu, applied=applied, rounded=rounded)

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


def estimated(
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

"""Confirms findings without the watch: the program runs again, and must do the same work.

Any dispatch mode makes torch take other ways in places, so a finding whose operators do not occur
in a run that nobody watches is not proven. The certainty itself is judged by the worker's rules.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from torchyard.core.values import Certainty, Proof, ProofTest, ValueFinding, ValueProfile
from torchyard.errors import ResultsDamaged
from torchyard.values.native_file import NativeRun, read_native_run
from torchyard.values.program_run import run_in_target
from torchyard.values.request import ProfileRequest
from torchyard.worker.values.certainty import NATIVE_PROGRAM, judge

__all__ = ["confirm", "confirm_in_target", "unconfirmed"]

NOT_FINISHED: Final = "the program did not finish, so it was not run again without the profiler"
_LEAST_LIMIT_S: Final = 120.0
_LIMIT_FACTOR: Final = 3.0


def confirm_in_target(
    request: ProfileRequest, folder: Path, profile: ValueProfile
) -> tuple[ValueProfile, NativeRun | None]:
    """Run the program again without the watch, silently, and judge every finding anew.

    A program that did not finish is not run again: it would do half of its work twice.
    """
    if profile.state != "finished":
        return unconfirmed(profile, NOT_FINISHED), None
    limit_s = max(_LEAST_LIMIT_S, _LIMIT_FACTOR * profile.seconds)
    end = run_in_target(
        request,
        folder,
        name="native",
        silent=True,
        limit_s=limit_s,
        native=True,
        wanted=wanted_chains(profile),
    )
    try:
        native = read_native_run(end.output)
    except ResultsDamaged:
        why = f"the run without the profiler ended with {end.exit_code} and left nothing"
        return unconfirmed(profile, why), None
    if native.steps == 0 and native.recorded_whole:
        native = _timed_again(request, folder, native, limit_s)
    return confirm(profile, native), native


def _timed_again(
    request: ProfileRequest, folder: Path, native: NativeRun, limit_s: float
) -> NativeRun:
    """A program without steps had events recorded to its end: take its time once more without."""
    end = run_in_target(
        request, folder, name="timed", silent=True, limit_s=limit_s, native=True, wanted=[]
    )
    try:
        timed = read_native_run(end.output)
    except ResultsDamaged:
        return native
    return replace(
        native,
        program_ns=timed.program_ns,
        program_cpu_ns=timed.program_cpu_ns,
        recorded_whole=False,
    )


def wanted_chains(profile: ValueProfile) -> list[list[str]]:
    """What to look for."""
    return [list(chain) for chain in sorted({_chain(finding) for finding in profile.findings})]


def confirm(profile: ValueProfile, native: NativeRun) -> ValueProfile:
    """Every finding with the test of the native run, and judged with it; the time of a step."""
    found = tuple(_confirmed(finding, native) for finding in profile.findings)
    return replace(
        profile,
        findings=found,
        step_ns=step_ns(native),
        notes=(*profile.notes, *(f"run without the profiler: {note}" for note in native.notes)),
    )


def step_ns(native: NativeRun) -> float | None:
    """A step natively; the whole program where it has no steps.

    On a busy machine a step waits for its turn, which the operators of findings, timed at their best,
    do not: there CPU time is the better measure, and shares of it are never too small.
    """
    if native.step_ns is not None:
        return _undisturbed_ns(native, native.step_ns, native.step_cpu_ns)
    if native.steps == 0 and not native.recorded_whole:
        return _undisturbed_ns(native, native.program_ns, native.program_cpu_ns)
    return None


def _undisturbed_ns(native: NativeRun, wall_ns: float, cpu_ns: float | None) -> float:
    """With several threads CPU time is the longer one, and wall time is taken."""
    return wall_ns if native.accelerated or not cpu_ns else min(wall_ns, cpu_ns)


def unconfirmed(profile: ValueProfile, why: str) -> ValueProfile:
    """The same findings, none of them confirmed, and why."""
    test = ProofTest(test=NATIVE_PROGRAM, passed=False, detail=why)
    found = tuple(_judged(finding, test) for finding in profile.findings)
    return replace(profile, findings=found, notes=(*profile.notes, why))


def _confirmed(finding: ValueFinding, native: NativeRun) -> ValueFinding:
    chain = _chain(finding)
    times = native.times_seen(chain)
    said = " > ".join(chain)
    detail = f"{said}: {times} times in {native.recorded_steps or 'no'} steps"
    if not times:
        detail = f"without the profiler the program does not run {said}"
    return _judged(finding, ProofTest(test=NATIVE_PROGRAM, passed=times > 0, detail=detail))


def _judged(finding: ValueFinding, test: ProofTest) -> ValueFinding:
    tests = (*(t for t in finding.proof.tests if t.test != NATIVE_PROGRAM), test)
    certainty, why = judge([asdict(item) for item in tests], inside=bool(finding.path))
    if len(tests) == 1 and test.passed:
        why = finding.proof.why or why  # the worker knows why it tested nothing
    return replace(finding, proof=Proof(certainty=Certainty(certainty), why=why, tests=tests))


def _chain(finding: ValueFinding) -> tuple[str, ...]:
    return (*finding.path, finding.operator)

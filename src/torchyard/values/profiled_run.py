"""Profile the values of a program: run, confirm, price, measure gains, store.

Each stage after the profiled run can fail alone; the results of the earlier stages are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.process.tree import sweep_orphans
from torchyard.values.fix_runs import measure_fixes, runs_for_fixes
from torchyard.values.gains import (
    PROGRAM_LAUNCHES,
    measure_gains,
    measure_set_to_none,
    zeroed_gradients,
)
from torchyard.values.joined_findings import joined_profile
from torchyard.values.model import (
    Certainty,
    ProfileRequest,
    Proof,
    ProofTest,
    ValueFinding,
    ValueProfile,
    new_profile_folder,
    read_profile,
    write_profile,
)
from torchyard.values.patching.model import store_request
from torchyard.values.prices import price_in_target, sites_to_time, unpriced
from torchyard.values.process_parts import Part, Parts, read_native_parts, read_parts
from torchyard.values.source_excerpts import with_excerpts
from torchyard.values.target_run import NativeRun, ProgramEnd, run_in_target, run_natively
from torchyard.worker.values.exchange import KERNEL_PREFIX
from torchyard.worker.values.proofs.certainty import NATIVE_PROGRAM, certainty_of

NOT_FINISHED: Final = "the program did not finish, so it was not run again without the profiler"


def confirm_in_target(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None] = lambda _text: None,
    of_children: Sequence[list[str]] = (),
) -> tuple[ValueProfile, NativeRun | None]:
    """Run the program again without value profiling and update the certainty of every finding.

    Child processes record the chains `of_children`, and write parts.

    The same run times the operators of the findings in every second step; a program without steps runs up to two more
    times. A program that did not finish is not run again.
    """
    if profile.state != "finished":
        return unconfirmed(profile, NOT_FINISHED), None
    sites = sites_to_time(profile) if not profile.compiled else []
    native = run_natively(
        request,
        folder,
        name="native",
        profiled_s=profile.seconds,
        wanted=[*chains_to_confirm(profile), *of_children],
        sites=sites,
        parts=native_parts(folder) if of_children else None,
    )
    if native is None:
        return unconfirmed(profile, "the run without the profiler left no result"), None
    if native.state == "finished":
        native = _timed(request, folder, native, profile.seconds, sites, say)
    return confirm(profile, native), native


def _timed(
    request: ProfileRequest,
    folder: Path,
    native: NativeRun,
    profiled_s: float,
    sites: list[dict[str, Any]],
    say: Callable[[str], None],
) -> NativeRun:
    """Run the program again for the times that the first run could not measure."""

    def again(name: str, **plan: Any) -> NativeRun | None:
        run = run_natively(request, folder, name=name, profiled_s=profiled_s, **plan)
        return run if run is not None and run.state == "finished" else None

    if native.steps:
        if native.step_ns is not None and (native.site_steps or not sites):
            return native
        say("running it again: its steps were too few to time them in the same run")
        timed = again("timed", sites=sites)
        if timed is None or timed.step_ns is None:
            return native
        return replace(timed, chains=native.chains, recorded_steps=native.recorded_steps)
    if native.recorded_whole:
        say("running it again: it has no steps, so the whole program is timed")
        timed = again("timed")
        if timed is not None:
            native = replace(
                native,
                program_ns=timed.program_ns,
                program_cpu_ns=timed.program_cpu_ns,
                program_faults=timed.program_faults,
                probes_ns=timed.probes_ns,
                recorded_whole=False,
            )
    if sites:
        say("running it again: it has no steps, so its operators are timed in a run of their own")
        timed = again("sites", sites=sites, sites_whole=True)
        if timed is not None:
            native = replace(
                native,
                sites=timed.sites,
                site_steps=timed.site_steps,
                other_ns=timed.other_ns,
                costs=timed.costs,
                probes_ns=(*native.probes_ns, *timed.probes_ns),
            )
    return native


def chains_to_confirm(profile: ValueProfile) -> list[list[str]]:
    """Return the chains of operators that the native run must contain."""
    findings = [one for one in profile.findings if not one.operator.startswith(KERNEL_PREFIX)]
    return [list(chain) for chain in sorted({_chain(finding) for finding in findings})]


def confirm(profile: ValueProfile, native: NativeRun) -> ValueProfile:
    """Return the profile with the native test of every finding, and with the time of a step."""
    findings = tuple(_confirmed(finding, native) for finding in profile.findings)
    wall_ns, cpu_ns = step_ns(native)
    return replace(
        profile,
        findings=findings,
        step_ns=wall_ns,
        step_cpu_ns=cpu_ns,
        notes=(*profile.notes, *(f"run without the profiler: {note}" for note in native.notes)),
    )


def step_ns(native: NativeRun) -> tuple[float | None, float | None]:
    """Return wall and CPU time of a native step, or of the whole program if it has no steps."""
    if native.step_ns is not None:
        return native.step_ns, native.step_cpu_ns
    if native.steps == 0 and not native.recorded_whole:
        return native.program_ns, native.program_cpu_ns
    return None, None


def unconfirmed(profile: ValueProfile, why: str) -> ValueProfile:
    """Return the profile with all findings unconfirmed, and the reason."""
    test = ProofTest(test=NATIVE_PROGRAM, passed=False, detail=why)
    findings = tuple(
        finding if finding.operator.startswith(KERNEL_PREFIX) else _with_test(finding, test)
        for finding in profile.findings
    )
    return replace(profile, findings=findings, notes=(*profile.notes, why))


def _confirmed(finding: ValueFinding, native: NativeRun) -> ValueFinding:
    if finding.operator.startswith(KERNEL_PREFIX):
        return finding  # the run without the profiler records operators, not generated kernels
    chain = _chain(finding)
    count = native.occurrences(chain)
    name = " > ".join(chain)
    detail = f"{name}: {count} times in {native.recorded_steps or 'no'} steps"
    if not count:
        detail = f"without the profiler the program does not run {name}"
    return _with_test(finding, ProofTest(test=NATIVE_PROGRAM, passed=count > 0, detail=detail))


def _with_test(finding: ValueFinding, test: ProofTest) -> ValueFinding:
    tests = (*(t for t in finding.proof.tests if t.test != NATIVE_PROGRAM), test)
    certainty, why = certainty_of([asdict(item) for item in tests], inside=bool(finding.path))
    if len(tests) == 1 and test.passed:
        why = finding.proof.why or why  # the worker gives the reason for missing trials
    return replace(finding, proof=Proof(certainty=Certainty(certainty), why=why, tests=tests))


def _chain(finding: ValueFinding) -> tuple[str, ...]:
    return (*finding.path, finding.operator)


ONCE: Final = "the program was run only once (--once)"

Stage = Callable[[ValueProfile], ValueProfile]


def confirmed_and_priced(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    keep: Callable[[ValueProfile], object] = lambda _profile: None,
    gains: bool = False,
    once: bool = False,
    of_children: Sequence[list[str]] = (),
) -> ValueProfile:
    """Return the profile with certainties, prices and gains; `keep` receives it after each stage, `once` skips runs."""
    if not profile.findings and not of_children:
        return profile
    if once:
        profile = unpriced(unconfirmed(profile, f"unavailable: {ONCE}"), f"unavailable: {ONCE}")
        keep(profile)
        return profile
    native: NativeRun | None = None

    def confirmed(before: ValueProfile) -> ValueProfile:
        nonlocal native
        after, native = confirm_in_target(request, folder, before, say=say, of_children=of_children)
        return after

    stages: list[tuple[str, Stage]] = [
        ("running it again without the profiler", confirmed),
        ("estimating savings", lambda before: price_in_target(request, folder, before, native)),
    ]
    if gains:
        stages += [
            ("measuring gains", lambda before: measure_gains(request, folder, before, say=say)),
            ("applying fixes", lambda before: measure_fixes(request, folder, before, say=say)),
            (
                "comparing steps",
                lambda before: measure_set_to_none(request, folder, before, say=say),
            ),
        ]
    if profile.state == "finished":
        say(announcement(profile, gains=gains))
    for what, stage in stages:
        say(what)
        try:
            profile = stage(profile)
        except TorchyardError as error:
            profile = replace(profile, notes=(*profile.notes, f"{what} failed: {error.what}"))
        keep(profile)
    return profile


def announcement(profile: ValueProfile, *, gains: bool) -> str:
    """Return the message about further runs: how many, why, and their side effects."""
    times = "once more" if profile.steps > 1 else "up to three times more (it has no steps)"
    runs = runs_for_fixes(profile) + (PROGRAM_LAUNCHES if zeroed_gradients(profile) else 0)
    more = f", and {runs} times for --gains" if gains and runs else ""
    return (
        f"the program is now run again, {times}{more}, without the profiler, to confirm findings and "
        "to time them. This repeats its side effects: files it writes, network requests, GPU work. "
        "Its output is discarded. Use --once to run the program only once."
    )


Profiled = tuple[ValueProfile, Path]


def profile_program(
    request: ProfileRequest,
    *,
    folder: Path | None = None,
    say: Callable[[str], None],
    gains: bool = False,
    once: bool = False,
) -> Profiled:
    """Run the program with value profiling and store the profile in a folder.

    If the program crashes, exits or is interrupted, the findings so far are kept. If it ended by
    itself, it is run again without value profiling, unless proofs are off or `once` is given.
    """
    sweep_orphans()
    place = new_profile_folder(folder)
    say(f"profiling {' '.join(request.program) or _label(request)}")
    began_s = time.time()
    end = run_in_target(request, place, parts=place / PARTS)
    profile = _read(request, end)
    parts = read_parts(place / PARTS, profile)
    # Source lines are read now: files may change, and relative names refer to this folder.
    excerpts = with_excerpts(joined_profile(profile, parts)).excerpts
    profile = replace(profile, excerpts=excerpts)
    joined = joined_profile(profile, parts)
    path = write_profile(place, joined)
    store_request(place, request, joined, began_s=began_s)
    if request.options.prove and not end.interrupted:
        chains = [chain for part in parts.children for chain in chains_to_confirm(part.profile)]
        profile = confirmed_and_priced(
            request,
            place,
            profile,
            say=say,
            keep=lambda current: write_profile(place, joined_profile(current, parts)),
            gains=gains,
            once=once,
            of_children=[list(chain) for chain in sorted({tuple(chain) for chain in chains})],
        )
        parts = _confirmed_parts(place, profile, parts, once=once)
        joined = joined_profile(profile, parts)
        write_profile(place, joined)
    return joined, path


PARTS: Final = "processes"


def native_parts(folder: Path) -> Path:
    """Return the folder of what child processes record without the profiler."""
    return folder / "native-processes"


def _confirmed_parts(folder: Path, main: ValueProfile, parts: Parts, *, once: bool) -> Parts:
    """Return the parts with the native test of every finding: recorded in a process of the same kind and rank."""

    def confirmed(part: Part) -> Part:
        if once or main.state != "finished":
            why = f"unavailable: {ONCE}" if once else NOT_FINISHED
            return replace(part, profile=unconfirmed(part.profile, why))
        runs = [
            run
            for record, run in native
            if record.kind == part.process.kind and record.rank == part.process.rank
        ]
        if not runs:
            why = "no such process of the run without the profiler left a result"
            return replace(part, profile=unconfirmed(part.profile, why))
        both = replace(
            runs[0],
            recorded_steps=sum(run.recorded_steps for run in runs),
            chains=tuple(chain for run in runs for chain in run.chains),
            notes=(),
        )
        return replace(part, profile=confirm(part.profile, both))

    native = read_native_parts(native_parts(folder))
    children = [
        part if not part.profile.findings or part.process.state == "killed" else confirmed(part)
        for part in parts.children
    ]
    return replace(parts, children=tuple(children))


def _read(request: ProfileRequest, end: ProgramEnd) -> ValueProfile:
    if not end.output.is_file():
        raise WorkerFailed(
            f"the program ended with {end.exit_code} before it could be profiled",
            hint="check its output; `torchyard target` shows whether the target has torch",
        )
    profile = read_profile(end.output)
    state = profile.state
    if state == "running":
        # The last state written, if the process was killed or exited without cleanup.
        state = "interrupted" if end.interrupted else "crashed"
    return replace(
        profile,
        state=state,
        exit_code=end.exit_code,
        program=request.program or (_label(request),),
    )


def _label(request: ProfileRequest) -> str:
    return request.workload.label if request.workload is not None else "nothing"

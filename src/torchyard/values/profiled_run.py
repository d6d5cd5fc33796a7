"""Profile the values of a program: run, confirm, price, measure gains, store.

Each stage after the profiled run can fail alone; the results of the earlier stages are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.errors import TorchyardError, WorkerFailed
from torchyard.process.tree import sweep_orphans
from torchyard.values.confirmation import confirm_in_target, unconfirmed
from torchyard.values.fix_runs import measure_fixes, runs_for_fixes
from torchyard.values.gains import (
    PROGRAM_LAUNCHES,
    measure_gains,
    measure_set_to_none,
    zeroed_gradients,
)
from torchyard.values.model import (
    ProfileRequest,
    ValueProfile,
    new_profile_folder,
    read_profile,
    write_profile,
)
from torchyard.values.prices import price_in_target, unpriced
from torchyard.values.source_excerpts import with_excerpts
from torchyard.values.target_run import NativeRun, ProgramEnd, run_in_target

ONCE: Final = "the program was run only once (--once)"

Part = Callable[[ValueProfile], ValueProfile]


def confirmed_and_priced(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    keep: Callable[[ValueProfile], object] = lambda _profile: None,
    gains: bool = False,
    once: bool = False,
) -> ValueProfile:
    """Return the profile with certainties, prices and, if asked for, gains.

    `keep` gets it after each part. With `once` the program is not run again, and what that leaves
    unavailable is said.
    """
    if not profile.findings:
        return profile
    if once:
        profile = not_run_again(profile)
        keep(profile)
        return profile
    native: NativeRun | None = None

    def confirmed(known: ValueProfile) -> ValueProfile:
        nonlocal native
        found, native = confirm_in_target(request, folder, known, say=say)
        return found

    parts: list[tuple[str, Part]] = [
        ("running it again without the profiler", confirmed),
        ("estimating savings", lambda known: price_in_target(request, folder, known, native)),
    ]
    if gains:
        parts += [
            ("measuring gains", lambda known: measure_gains(request, folder, known, say=say)),
            ("applying fixes", lambda known: measure_fixes(request, folder, known, say=say)),
            ("comparing steps", lambda known: measure_set_to_none(request, folder, known, say=say)),
        ]
    if profile.state == "finished":
        say(announcement(profile, gains=gains))
    for what, part in parts:
        say(what)
        try:
            profile = part(profile)
        except TorchyardError as error:
            profile = replace(profile, notes=(*profile.notes, f"{what} failed: {error.what}"))
        keep(profile)
    return profile


def announcement(profile: ValueProfile, *, gains: bool) -> str:
    """Say what is run again, why, and what that repeats."""
    times = "once more" if profile.steps > 1 else "up to three times more (it has no steps)"
    runs = runs_for_fixes(profile) + (PROGRAM_LAUNCHES if zeroed_gradients(profile) else 0)
    more = f", and {runs} times for --gains" if gains and runs else ""
    return (
        f"the program is now run again, {times}{more}, without the profiler, to confirm findings and "
        "to time them. This repeats its side effects: files it writes, network requests, GPU work. "
        "Its output is discarded. Use --once to run the program only once."
    )


def not_run_again(profile: ValueProfile) -> ValueProfile:
    """Return the profile of a program that is run once: unconfirmed, unpriced, and why."""
    return unpriced(unconfirmed(profile, f"unavailable: {ONCE}"), f"unavailable: {ONCE}")


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

    A program that crashes, exits or is interrupted is a result like any other: what was found up
    to there is kept. One that ended by itself is run again without the profiler, unless proofs are off
    or `once` is given.
    """
    sweep_orphans()
    place = new_profile_folder(folder)
    say(f"profiling {' '.join(request.program) or _label(request)}")
    end = run_in_target(request, place)
    profile = _read(request, end)
    path = write_profile(place, profile)
    if request.options.prove and not end.interrupted:
        profile = confirmed_and_priced(
            request,
            place,
            profile,
            say=say,
            keep=lambda known: write_profile(place, known),
            gains=gains,
            once=once,
        )
    return profile, path


def _read(request: ProfileRequest, end: ProgramEnd) -> ValueProfile:
    if not end.output.is_file():
        raise WorkerFailed(
            f"the program ended with {end.exit_code} before it could be watched",
            hint="look at what it printed; `torchyard target` tells whether the target has a torch",
        )
    profile = read_profile(end.output)
    state = profile.state
    if state == "running":
        # The last write says so when the process was killed, or left by a way past Python.
        state = "interrupted" if end.interrupted else "crashed"
    # Source lines are read now: files change, and relative names mean this folder.
    return with_excerpts(
        replace(
            profile,
            state=state,
            exit_code=end.exit_code,
            program=request.program or (_label(request),),
        )
    )


def _label(request: ProfileRequest) -> str:
    return request.workload.label if request.workload is not None else "nothing"

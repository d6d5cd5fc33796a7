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
    """Return the profile with certainties, prices and, with `gains`, gains.

    `keep` receives it after each stage. With `once` the program is not run again, and the profile
    states what is therefore unavailable.
    """
    if not profile.findings:
        return profile
    if once:
        profile = not_run_again(profile)
        keep(profile)
        return profile
    native: NativeRun | None = None

    def confirmed(before: ValueProfile) -> ValueProfile:
        nonlocal native
        after, native = confirm_in_target(request, folder, before, say=say)
        return after

    parts: list[tuple[str, Part]] = [
        ("running it again without the profiler", confirmed),
        ("estimating savings", lambda before: price_in_target(request, folder, before, native)),
    ]
    if gains:
        parts += [
            ("measuring gains", lambda before: measure_gains(request, folder, before, say=say)),
            ("applying fixes", lambda before: measure_fixes(request, folder, before, say=say)),
            (
                "comparing steps",
                lambda before: measure_set_to_none(request, folder, before, say=say),
            ),
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
    """Return the message about further runs: how many, why, and their side effects."""
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

    If the program crashes, exits or is interrupted, the findings so far are kept. If it ended by
    itself, it is run again without value profiling, unless proofs are off or `once` is given.
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
            keep=lambda current: write_profile(place, current),
            gains=gains,
            once=once,
        )
    return profile, path


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
    # Source lines are read now: files may change, and relative names refer to this folder.
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

"""A profile of values from the program to the findings: watched, confirmed, priced, kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchyard.core.values import ValueProfile
from torchyard.errors import WorkerFailed
from torchyard.process.markers import sweep_orphans
from torchyard.values.profile_file import new_profile_folder, read_profile, write_profile
from torchyard.values.program_run import ProgramEnd, run_in_target
from torchyard.values.request import ProfileRequest
from torchyard.values.source_excerpts import with_excerpts
from torchyard.workflow.value_worth import confirmed_and_priced

__all__ = ["Profiled", "profile_values"]

Profiled = tuple[ValueProfile, Path]


def profile_values(
    request: ProfileRequest,
    *,
    folder: Path | None = None,
    say: Callable[[str], None],
    gains: bool = False,
    once: bool = False,
) -> Profiled:
    """Run the program under the watch, and make of what it left a profile in a folder.

    A program that crashes, exits or is interrupted is a result like any other: what was found up
    to there is kept. One that ended by itself is run again without the watch, unless proofs are off
    or `once` is given.
    """
    sweep_orphans()
    place = new_profile_folder(folder)
    say(f"watching {' '.join(request.program) or _label(request)}")
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

"""After a program was watched: its findings confirmed without the watch, priced, and gains measured.

Joins what `values` does on its own with what needs `measure`. Each part can fail alone; what is
known by then is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.core.values import ValueProfile
from torchyard.errors import TorchyardError
from torchyard.values.confirmation import confirm_in_target, unconfirmed
from torchyard.values.native_file import NativeRun
from torchyard.values.prices import price_in_target, unpriced
from torchyard.values.request import ProfileRequest
from torchyard.workflow.value_gain import (
    PROGRAM_LAUNCHES,
    measure_gains,
    measure_set_to_none,
    zeroed_gradients,
)

__all__ = ["ONCE", "announcement", "confirmed_and_priced", "not_run_again"]

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
        ("pricing findings", lambda known: price_in_target(request, folder, known, native)),
    ]
    if gains:
        parts += [
            ("measuring gains", lambda known: measure_gains(request, folder, known, say=say)),
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
    more = (
        f", and {PROGRAM_LAUNCHES} times for --gains" if gains and zeroed_gradients(profile) else ""
    )
    return (
        f"the program is now run again, {times}{more}: without the profiler, to confirm findings and "
        "to time them. It repeats everything that the program does: files it writes, network "
        "requests, GPU work. Its output is discarded. To run the program only once: --once"
    )


def not_run_again(profile: ValueProfile) -> ValueProfile:
    """Return the profile of a program that is run once: unconfirmed, unpriced, and why."""
    return unpriced(unconfirmed(profile, f"unavailable: {ONCE}"), f"unavailable: {ONCE}")

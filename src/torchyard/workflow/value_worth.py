"""After a program was watched: its findings confirmed without the watch, priced, and gains measured.

Joins what `values` does on its own with what needs `measure`. Each part can fail alone; what is
known by then is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchyard.core.values import ValueProfile
from torchyard.errors import TorchyardError
from torchyard.values.confirmation import confirm_in_target
from torchyard.values.prices import price_in_target
from torchyard.values.request import ProfileRequest
from torchyard.workflow.value_gain import measure_gains, measure_set_to_none

__all__ = ["confirmed_and_priced"]

Part = Callable[[ValueProfile], ValueProfile]


def confirmed_and_priced(
    request: ProfileRequest,
    folder: Path,
    profile: ValueProfile,
    *,
    say: Callable[[str], None],
    keep: Callable[[ValueProfile], object] = lambda _profile: None,
    gains: bool = False,
) -> ValueProfile:
    """The profile with certainties, prices and, if asked for, gains; `keep` gets it after each part.

    The program runs once more, silently, and with `gains` several times more.
    """
    if not profile.findings:
        return profile
    parts: list[tuple[str, Part]] = [
        (
            "running it again without the profiler",
            lambda known: confirm_in_target(request, folder, known)[0],
        ),
        ("pricing what was found", lambda known: price_in_target(request, folder, known)),
    ]
    if gains:
        parts += [
            ("measuring gains", lambda known: measure_gains(request, folder, known, say=say)),
            ("comparing steps", lambda known: measure_set_to_none(request, folder, known, say=say)),
        ]
    for what, part in parts:
        say(what)
        try:
            profile = part(profile)
        except TorchyardError as error:
            profile = replace(profile, notes=(*profile.notes, f"{what} failed: {error.what}"))
        keep(profile)
    return profile

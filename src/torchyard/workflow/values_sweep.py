"""A sweep from the request to its results: a new one in a folder of its own, or one that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from torchyard.core.value_sweep import Sweep, SweepSettings
from torchyard.process.markers import sweep_orphans
from torchyard.results.run_home import home_folder, new_run_folder
from torchyard.values.profile_file import new_profile_folder
from torchyard.values.sweep import run_sweep
from torchyard.values.sweep_file import SweepFolder

__all__ = ["resume_sweep", "start_sweep"]

_LIMIT_SAID: Final = "goes on with `torchyard values sweep --resume {folder}`"

Swept = tuple[Sweep, Path]


def start_sweep(
    settings: SweepSettings, *, folder: Path | None = None, say: Callable[[str], None]
) -> Swept:
    """Sweep everything that is asked for."""
    place = (
        new_run_folder(home_folder() / "sweeps") if folder is None else new_profile_folder(folder)
    )
    kept = SweepFolder(place)
    kept.begin(settings)
    return _go_on(kept, settings, say)


def resume_sweep(folder: Path, *, say: Callable[[str], None]) -> Swept:
    """Sweep what is left of an earlier sweep, with its settings."""
    kept = SweepFolder(folder)
    return _go_on(kept, kept.settings(), say)


def _go_on(kept: SweepFolder, settings: SweepSettings, say: Callable[[str], None]) -> Swept:
    sweep_orphans()
    say(
        f"sweep: {kept.folder}; when it is interrupted, it "
        + _LIMIT_SAID.format(folder=kept.folder)
    )

    def progress(done: int, total: int, under_way: str) -> None:
        if under_way:
            say(f"{done + 1}/{total} {under_way}")

    run_sweep(kept, settings, progress)
    return kept.read(), kept.folder

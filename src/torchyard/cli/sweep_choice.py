"""Which sweep a user means: `latest`, a folder, or the name of one in the sweeps' home."""

from __future__ import annotations

from pathlib import Path

from torchyard.errors import NothingToDo, UsageError

__all__ = ["find_sweep", "sweep_folders"]


def sweep_folders() -> list[Path]:
    """The folders in the sweeps' home that hold a plan, newest first."""
    from torchyard.results.sweep_folder import PLAN_FILE, sweeps_home

    home = sweeps_home()
    try:
        found = [path for path in home.iterdir() if (path / PLAN_FILE).is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.name, reverse=True)


def find_sweep(text: str) -> Path:
    """The folder of the sweep; raises UsageError with the nearest name when there is none."""
    from torchyard.core.records import nearest_hint
    from torchyard.results.sweep_folder import sweeps_home

    kept = sweep_folders()
    if text == "latest":
        if kept:
            return kept[0]
        raise NothingToDo(
            "there is no sweep yet",
            why=f"looked in {sweeps_home()}",
            hint="make one with `torchyard sweep`, or name a sweep's folder",
        )
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder
    named = [path for path in kept if path.name == text]
    begun = named or [path for path in kept if text and path.name.startswith(text)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(
            f"{text!r} could be {len(begun)} sweeps", hint="write more letters of the name"
        )
    raise UsageError(
        f"there is no sweep {text!r}",
        why=f"it is neither a folder nor the name of a sweep in {sweeps_home()}",
        hint=nearest_hint(text, ["latest", *(path.name for path in kept[:20])], what="sweep"),
    )

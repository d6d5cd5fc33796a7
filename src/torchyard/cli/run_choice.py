"""Which run a user means: `latest`, a folder, or the id of a run in the runs' home."""

from __future__ import annotations

from pathlib import Path

from torchyard.errors import NothingToDo, UsageError

__all__ = ["find_run"]


def find_run(text: str) -> Path:
    """The folder of the run; raises UsageError with the nearest id when there is none."""
    from torchyard.results.run_home import latest_run, runs_home

    home = runs_home()
    if text == "latest":
        found = latest_run(home)
        if found is None:
            raise NothingToDo(
                "there is no run yet",
                why=f"looked in {home}",
                hint="make one with `torchyard bench`, or name a run's folder",
            )
        return found
    as_path = Path(text).expanduser()
    if text and as_path.is_dir():
        return as_path
    if text not in {"", ".", ".."} and "/" not in text and (home / text).is_dir():
        return home / text
    from torchyard.core.records import nearest_hint

    known = (
        sorted((p.name for p in home.iterdir() if p.is_dir()), reverse=True)[:20]
        if (home.is_dir())
        else []
    )
    raise UsageError(
        f"there is no run {text!r}",
        why=f"it is neither a folder nor the id of a run in {home}",
        hint=nearest_hint(text, ["latest", *known], what="run"),
    )

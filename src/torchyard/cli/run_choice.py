"""Which run a user means: `latest`, a folder, an id in the runs' home, or the beginning of one."""

from __future__ import annotations

from pathlib import Path

from torchyard.errors import NothingToDo

__all__ = ["find_run"]


def find_run(text: str) -> Path:
    """The folder of the run; raises UsageError when there is none, or more than one begins so."""
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
    # Only the beginning of an id is left, and only the store knows which runs there are.
    from torchyard.results.index.store import Store

    with Store.open() as store:
        store.refresh()
        return Path(store.run(text).folder)

"""How a run is at this moment, by its own folder and not by the index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchyard.errors import ResultsDamaged
from torchyard.results.layout import RUN_FILE
from torchyard.results.owner import is_gone
from torchyard.results.run_reader import read_info

__all__ = ["RunState", "state_now"]


class RunState:
    """Asked again and again while a run goes: its file is read only when it changed.

    A bench measures meanwhile, and reading costs time on the same machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark: tuple[int, int] | None = None
        self._said = ""
        self._owner: Mapping[str, Any] = {}

    def now(self) -> str:
        """What the run's own file says; `interrupted` when its process is gone."""
        try:
            facts = (self._folder / RUN_FILE).stat()
        except OSError:
            return "removed"
        mark = (facts.st_mtime_ns, facts.st_ino)
        if mark != self._mark:
            try:
                info = read_info(self._folder)
            except ResultsDamaged:
                return "damaged"
            self._mark, self._said = mark, str(info.get("state"))
            owner = info.get("owner")
            self._owner = owner if isinstance(owner, Mapping) else {}
        return "interrupted" if self._said == "running" and is_gone(self._owner) else self._said


def state_now(folder: Path) -> str:
    """The same, asked once."""
    return RunState(folder).now()

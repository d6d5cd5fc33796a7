"""How a run is at this moment, by its own folder and not by the index."""

from __future__ import annotations

from pathlib import Path

from torchyard.errors import ResultsDamaged
from torchyard.results.layout import RUN_FILE
from torchyard.results.owner import is_gone
from torchyard.results.run_reader import read_info

__all__ = ["state_now"]


def state_now(folder: Path) -> str:
    """The state that the run's own file says; `interrupted` when its process is gone."""
    try:
        info = read_info(folder)
    except ResultsDamaged:
        return "removed" if not (folder / RUN_FILE).exists() else "damaged"
    state = str(info.get("state"))
    return "interrupted" if state == "running" and is_gone(info.get("owner") or {}) else state

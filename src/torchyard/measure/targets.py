"""What a target says of itself: start a worker in it, ask, and end it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torchyard.core.variant import Target
from torchyard.process.group import WorkerGroup
from torchyard.process.launch import LaunchSpec
from torchyard.process.trouble import WorkerTrouble

__all__ = ["inspect_target"]


def inspect_target(target: Target, *, limit_s: float = 120.0) -> dict[str, Any]:
    """The handshake of a worker in this target; raises WorkerTrouble when there is none."""
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder, WorkerGroup() as group:
        spec = LaunchSpec(
            name=target.name,
            python=target.python,
            variables=target.variables,
            start_limit_s=limit_s,
            working_folder=folder,
        )
        try:
            worker = group.start(spec, log_path=Path(folder) / "worker.log")
            return worker.ask("hello", limit_s=limit_s)
        except WorkerTrouble as trouble:
            trouble.log = ""  # it goes with the folder; its last lines are in the trouble
            raise

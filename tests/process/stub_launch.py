"""Starts real workers for the tests of the process package: small scripts, no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Self

from torchyard.process.start import LaunchSpec
from torchyard.process.worker_process import WorkerGroup, WorkerProcess

STUB = Path(__file__).with_name("stub_worker.py")


def spec_of(**changes: Any) -> LaunchSpec:
    return LaunchSpec(**{"name": "stub", "python": sys.executable, "variables": (), **changes})


class StubStarter:
    """Called with what differs from the usual LaunchSpec; ends all its workers at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._group = WorkerGroup()

    def __call__(self, *, entry: Path | None = STUB, **changes: Any) -> WorkerProcess:
        log_path = self._folder / f"worker-{len(self._group.workers)}.log"
        return self._group.start(spec_of(**changes), log_path=log_path, entry=entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.kill()

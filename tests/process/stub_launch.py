"""Starts real workers for the tests of the process package: small scripts, no torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from torchyard.process.start import LaunchSpec
from torchyard.process.templates import TemplatePool
from torchyard.process.worker_process import WorkerGroup, WorkerProcess

STUB = Path(__file__).with_name("stub_worker.py")
STUB_TEMPLATE = Path(__file__).with_name("stub_template.py")
WAYS = ("fresh", "fork")
"""Ways of starting a worker."""


def spec_of(**changes: Any) -> LaunchSpec:
    return LaunchSpec(**{"name": "stub", "python": sys.executable, "variables": (), **changes})


class StubStarter:
    """Called with what differs from the usual LaunchSpec; ends all its workers at the end."""

    def __init__(self, folder: Path, way: str = "fresh") -> None:
        self._folder = folder
        self._group = WorkerGroup()
        self.reasons: list[str] = []
        """Why each worker was not forked; empty if it was."""
        self.pool = TemplatePool(entry=STUB_TEMPLATE) if way == "fork" else None

    def __call__(self, *, entry: Path | None = STUB, **changes: Any) -> WorkerProcess:
        log_path = self._folder / f"worker-{len(self._group.workers)}.log"
        spec = spec_of(**changes)
        template = None
        if self.pool is not None:
            (socket,) = self.pool.sockets([replace(spec, arguments=())], ())
            template = socket if isinstance(socket, Path) else None  # as a launch does
            self.reasons.append("" if template else str(socket))
        return self._group.start(spec, log_path=log_path, entry=entry, template=template)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.kill()
        if self.pool is not None:
            self.pool.close()

"""A set of workers that end together: politely at the end of the block, at once on any exception."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from torchyard.process.launch import LaunchSpec
from torchyard.process.worker_process import WorkerProcess

__all__ = ["WorkerGroup"]


class WorkerGroup:
    """Use as ``with WorkerGroup() as group: worker = group.start(spec, log_path=...)``."""

    def __init__(self) -> None:
        self._workers: list[WorkerProcess] = []

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """The workers started in this group, oldest first."""
        return tuple(self._workers)

    def start(
        self, spec: LaunchSpec, *, log_path: Path, entry: Path | None = None
    ) -> WorkerProcess:
        """Start a worker that belongs to the group."""
        worker = WorkerProcess.start(spec, log_path=log_path, entry=entry)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Close every worker, each even if another fails to; an interrupt kills the rest."""
        try:
            while self._workers:
                self._workers[-1].close()
                self._workers.pop()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill every worker, each even if another fails to."""
        with ExitStack() as stack:
            while self._workers:
                stack.callback(self._workers.pop().kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

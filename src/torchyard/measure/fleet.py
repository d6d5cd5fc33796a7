"""The processes of one side: one, or several instances that do the same at the same time.

Instances answer as one. What they do at the same time is timed together: a block of each is begun at
once, and an iteration of the fleet takes the time in which all of them together do one. Results are
checked in the first of them, since all are built alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from torchyard.process.worker_process import WorkerProcess

__all__ = ["Fleet", "together"]

_OF_THE_FIRST: Final = frozenset(
    {"reference", "judge", "verify", "recheck", "operators", "list", "peak"}
)
_ONE_BY_ONE: Final = frozenset({"build", "measure"})
"""The first one to be built may write the weights that the others load; memory is not shared."""


class Fleet:
    """Asks one worker, or all instances."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self._workers = tuple(workers)

    @property
    def is_alive(self) -> bool:
        """Whether all of them run."""
        return all(worker.is_alive for worker in self._workers)

    def kill(self) -> None:
        """End all of them at once."""
        for worker in self._workers:
            worker.kill()

    def ask(self, verb: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        """The answer of all as one; the trouble of any of them is raised."""
        first, *others = self._workers
        if not others or verb in _OF_THE_FIRST:
            return first.ask(verb, limit_s=limit_s, on_note=None, **fields)

        def ask(worker: WorkerProcess) -> dict[str, Any]:
            return worker.ask(verb, limit_s=limit_s, on_note=None, **fields)

        if verb in _ONE_BY_ONE:
            answers = [ask(worker) for worker in self._workers]
        else:
            answers = self._at_once(ask)
        return together(verb, answers)

    def _at_once(self, ask: Callable[[WorkerProcess], dict[str, Any]]) -> list[dict[str, Any]]:
        """In threads that are not waited for when one is in trouble: the crew ends the workers."""
        threads = ThreadPoolExecutor(max_workers=len(self._workers))
        try:
            return [one.result() for one in [threads.submit(ask, each) for each in self._workers]]
        finally:
            threads.shutdown(wait=False)


def together(verb: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What instances said, as the answer of one side."""
    merged = dict(answers[0])
    if verb == "block":
        merged["samples_ns"] = [
            1.0 / sum(1.0 / max(float(sample), 1e-3) for sample in samples)
            for samples in zip(*(one["samples_ns"] for one in answers), strict=True)
        ]
        merged["started_ns"] = min(int(one["started_ns"]) for one in answers)
        merged["wall_ns"] = max(int(one["wall_ns"]) for one in answers)
    elif verb == "measure":
        sizes = [one.get("peak_memory_bytes") for one in answers]
        if all(isinstance(size, int) for size in sizes):
            merged["peak_memory_bytes"] = sum(size for size in sizes if isinstance(size, int))
    elif verb == "reseat":
        for name in ("moved_bytes", "held_bytes"):
            merged[name] = sum(int(one[name]) for one in answers)
    elif verb == "warm" and "iteration_ns" in merged:
        merged["iteration_ns"] = max(float(one["iteration_ns"]) for one in answers)
        merged["stable"] = all(one["stable"] for one in answers)
    return merged

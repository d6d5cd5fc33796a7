"""Drive a sweep: hand cells to an executor, record how they ended, and retry them.

All state is in the sweep's folder and in the executor: a driver that is killed is replaced by the
next one, which repeats nothing that has finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from torchyard.sweep.attempt_claim import HEARTBEAT_S, LOST_S
from torchyard.sweep.executors.interface import Ended, Executor, Job
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import CellStatus, SweepView

__all__ = ["SweepDriver", "SweepListener"]

SweepListener = Callable[[SweepView], None]
PAUSE_S: Final = 0.5
_LIMITS: Final = frozenset({"time-limit", "memory-limit", "node-failed"})
"""What an executor knows better than a cell that was told to end."""
_STOPPED: Final = frozenset({"interrupted", "cancelled"})
"""Somebody wanted these to end: they wait for the next driver."""


class SweepDriver:
    """One run of a sweep until nothing is left that could be done."""

    def __init__(
        self,
        folder: SweepFolder,
        executor: Executor,
        *,
        listener: SweepListener,
        expected_s: Mapping[str, float] | None = None,
        pause_s: float = PAUSE_S,
        take_over: bool = False,
        wait_s: float = LOST_S + HEARTBEAT_S,
    ) -> None:
        """`expected_s` is what cells should take, by id, where that is known.

        `take_over` ends attempts of other processes that may still run; `wait_s` is how long to wait
        for those, when nothing else is left, until they end or are known to be lost.
        """
        self._folder = folder
        self._executor = executor
        self._listener = listener
        self._expected_s = dict(expected_s or {})
        self._pause_s = pause_s
        self._take_over = take_over
        self._wait_s = wait_s
        self._alone_since_s: float | None = None
        self._began_s = time.monotonic()
        self._took_s: dict[str, float] = {}
        self._at_a_time = 1
        self._began_running_s: dict[str, float] = {}
        self._attempts_before: dict[str, int] = {}
        self.left = ""
        """What became of running cells after Ctrl-C, for the user."""

    def run(self) -> list[CellStatus]:
        """All cells as they stand at the end. Ctrl-C leaves the executor in order and is raised."""
        with self._folder.driving():
            try:
                return self._drive()
            except KeyboardInterrupt:
                self.left = self._executor.leave()
                self._folder.close_lost()
                raise
            except BaseException:
                self._executor.leave()
                raise

    def _drive(self) -> list[CellStatus]:
        jobs, ended = self._executor.poll()  # what an earlier driver handed in
        self._close(ended)
        self._close_lost(jobs, take_over=self._take_over)
        handed_in = {job.cell for job in jobs}
        self._hand_in([cell for cell in self._open_cells() if cell not in handed_in])
        while True:
            jobs, ended = self._executor.poll()
            self._close(ended)
            self._hand_in([one.cell for one in ended if self._try_again(one)])
            self._look(jobs)
            if not jobs and not ended:
                lost = self._close_lost(jobs)
                self._hand_in([one for one in self._open_cells() if one in lost])
                if not lost and not self._is_to_wait():
                    return list(self._view(jobs).statuses)
            time.sleep(self._pause_s)

    def _close_lost(self, jobs: Sequence[Job], *, take_over: bool = False) -> list[str]:
        return self._folder.close_lost(running={job.cell for job in jobs}, take_over=take_over)

    def _is_to_wait(self) -> bool:
        """Whether cells are run by somebody else, who may turn out to be gone."""
        now_s = time.monotonic()
        elsewhere = any(one.state == "running" for one in self._folder.statuses())
        if not elsewhere:
            self._alone_since_s = None
            return False
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        return now_s - self._alone_since_s < self._wait_s

    def _open_cells(self) -> list[str]:
        """Cells that are not done, not given up, and not measured by anybody now."""
        return [one.cell.id for one in self._folder.statuses() if one.state == "waiting"]

    def _hand_in(self, cells: Sequence[str]) -> None:
        for cell in cells:
            self._attempts_before[cell] = len(self._folder.attempts(cell))
        if cells:
            self._executor.submit(cells)

    def _try_again(self, ended: Ended) -> bool:
        if ended.outcome in _STOPPED:
            return False
        return self._folder.status(ended.cell).state == "waiting"

    def _close(self, ended: Sequence[Ended]) -> None:
        """Write down what the cells could not say of themselves."""
        for one in ended:
            began_s = self._began_running_s.pop(one.cell, None)
            if began_s is not None:
                self._took_s[one.cell] = time.monotonic() - began_s
            attempts = self._folder.attempts(one.cell)
            never_began = len(attempts) <= self._attempts_before.get(one.cell, 0)
            if self._folder.status(one.cell).state == "done":
                continue
            if never_began:
                number = self._folder.begin(one.cell, place="never started").number
            elif attempts[-1].outcome is None or (
                attempts[-1].outcome == "interrupted" and one.outcome in _LIMITS
            ):
                number = attempts[-1].number
            else:
                continue  # it said more than the executor knows
            outcome = "died" if one.outcome == "finished" else one.outcome
            why = one.why or "its process ended without a word"
            self._folder.end(one.cell, number, outcome, why=why)

    def _look(self, jobs: Sequence[Job]) -> None:
        now_s = time.monotonic()
        running = [job.cell for job in jobs if job.state == "running"]
        self._at_a_time = max(self._at_a_time, len(running))
        for cell in running:
            self._began_running_s.setdefault(cell, now_s)
        self._listener(self._view(jobs))

    def _view(self, jobs: Sequence[Job]) -> SweepView:
        waiting = {job.cell: job for job in jobs}
        statuses = tuple(_with_job(one, waiting) for one in self._folder.statuses())
        return SweepView(
            plan=self._folder.plan,
            statuses=statuses,
            elapsed_s=time.monotonic() - self._began_s,
            remaining_s=self._remaining_s(statuses),
        )

    def _remaining_s(self, statuses: Sequence[CellStatus]) -> float | None:
        """What the rest was expected to take, times how wrong that was so far; else the mean."""
        left = [one for one in statuses if one.state in ("waiting", "queued", "running")]
        if not left:
            return 0.0
        known = [cell for cell in self._took_s if cell in self._expected_s]
        took_s = sum(self._took_s.values())
        if self._took_s and not known:
            each_s = took_s / len(self._took_s)
            whole_s = sum(each_s * _undone(one) for one in left)
        elif known:
            pace = sum(self._took_s[cell] for cell in known) / max(
                1e-9, sum(self._expected_s[cell] for cell in known)
            )
            usual_s = took_s / len(self._took_s)
            whole_s = sum(
                self._expected_s.get(one.cell.id, usual_s / pace) * pace * _undone(one)
                for one in left
            )
        else:
            return None
        return whole_s / self._at_a_time


def _undone(status: CellStatus) -> float:
    return 1.0 - (status.fraction or 0.0) if status.state == "running" else 1.0


def _with_job(status: CellStatus, jobs: Mapping[str, Job]) -> CellStatus:
    """A cell with what only the executor knows: that it waits in a queue, or is just starting."""
    job = jobs.get(status.cell.id)
    if job is None or status.state in ("done", "failed", "running"):
        return status
    return replace(status, state=job.state, text=job.text or status.text)

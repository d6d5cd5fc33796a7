"""Poll Slurm for all jobs of a sweep at once, at a limited rate.

squeue lists jobs that are queued, running, or ended some minutes ago (MinJobAge). sacct lists older
ones if the site has accounting; otherwise only the end record that the job wrote to the sweep's
folder remains.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from torchyard.errors import MissingTool, StepFailed
from torchyard.sweep.executors.slurm.job_states import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    JobArray,
    JobInfo,
    ask_slurm,
    has_ended,
    read_sacct,
    read_squeue,
    run_slurm,
)
from torchyard.sweep.executors.slurm.node_job import read_end

POLL_INTERVAL_S: Final = 5.0
MAX_POLL_INTERVAL_S: Final = 60.0
MAX_OUTAGE_S: Final = 900.0
"""Time to tolerate failing queries, for example while the controller restarts."""
LOST_AFTER_S: Final = 30.0
"""Time for accounting to catch up, and for a shared file system to show what a node wrote."""

Key = tuple[str, int]


class SlurmWatch:
    """States of jobs in Slurm, by name and index."""

    def __init__(
        self,
        folder: Path,
        *,
        every_s: float = POLL_INTERVAL_S,
        lost_after_s: float = LOST_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._every_s = every_s
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._interval_s = every_s
        self._polled_s: float | None = None
        self._answered_s: float | None = None
        self._states: dict[Key, JobInfo] = {}
        self._missing_since_s: dict[Key, float] = {}
        self._has_accounting = True
        self.last_error = ""
        """Why the last query failed; empty if it succeeded."""

    def invalidate(self) -> None:
        """Query Slurm at the next `poll`: jobs were submitted or cancelled."""
        self._polled_s = None

    def poll(self, arrays: Sequence[JobArray]) -> dict[Key, JobInfo | None]:
        """Return the last known state of each open job; None for a job that is lost."""
        now_s = self._clock()
        if arrays and (self._polled_s is None or now_s - self._polled_s >= self._interval_s):
            self._polled_s = now_s
            self._query(arrays, now_s)
        states: dict[Key, JobInfo | None] = {}
        for array in arrays:
            for index in array.open_indexes:
                key = (array.name, index)
                info = self._states.get(key)
                if info is not None:
                    states[key] = info
                elif self._is_lost(key, now_s):
                    states[key] = None
        return states

    def find(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of the jobs in Slurm, by name; queries immediately."""
        return {info.name: info.job for info in self._squeue(names)}

    def _query(self, arrays: Sequence[JobArray], now_s: float) -> None:
        try:
            current = self._squeue([array.name for array in arrays])
        except StepFailed as error:
            self.last_error = error.what
            # A query that times out blocks the driver for many seconds.
            self._interval_s = min(MAX_POLL_INTERVAL_S, 2 * self._interval_s)
            if self._answered_s is None or now_s - self._answered_s > MAX_OUTAGE_S:
                raise
            return
        self.last_error = ""
        self._interval_s = self._every_s
        self._answered_s = now_s
        fresh = {(one.name, one.index): one for one in current}
        open_keys = {(array.name, index) for array in arrays for index in array.open_indexes}
        missing = {
            key
            for key in open_keys - fresh.keys()
            # A final state is kept, even if Slurm removes the job between two queries.
            if key not in self._states or not has_ended(self._states[key])
        }
        for key in missing:
            self._states.pop(key, None)
        self._states.update(fresh)
        self._states.update(self._from_other_sources(arrays, missing))
        self._missing_since_s = {
            key: self._missing_since_s.get(key, now_s) for key in missing if key not in self._states
        }

    def _squeue(self, names: Sequence[str]) -> list[JobInfo]:
        if not names:
            return []
        answer = ask_slurm(
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            # Filtered by user first: the controller then sends only this user's jobs.
            f"--user={os.getuid()}",
            f"--name={','.join(names)}",
            f"--Format={SQUEUE_FORMAT}",
        )
        return list(read_squeue(answer))

    def _from_other_sources(
        self, arrays: Sequence[JobArray], missing: set[Key]
    ) -> dict[Key, JobInfo]:
        """Return the states of ended jobs from sacct and from the records that jobs wrote."""
        states: dict[Key, JobInfo] = {}
        if not missing:
            return states
        jobs = {array.job: array for array in arrays if array.job}
        ids = [job for job, array in jobs.items() if any(key[0] == array.name for key in missing)]
        for info in self._sacct(ids):
            key = (jobs[info.job].name, info.index) if info.job in jobs else None
            if key in missing and has_ended(info):
                states[key] = info
        by_name = {array.name: array for array in arrays}
        for name, index in missing - states.keys():
            end = read_end(self._folder, name, index)
            if end is not None:
                code = int(end["code"])
                states[(name, index)] = JobInfo(
                    name=name,
                    index=index,
                    job=by_name[name].job,
                    state="COMPLETED" if code == 0 else "FAILED",
                    code=code,
                    node=str(end.get("place", "")),
                    label=str(end.get("job", "")),
                )
        return states

    def _sacct(self, jobs: Sequence[str]) -> list[JobInfo]:
        if not jobs or not self._has_accounting:
            return []
        try:
            code, answer, error = run_slurm(
                "sacct",
                "--noheader",
                "--parsable2",
                "--allocations",
                f"--jobs={','.join(jobs)}",
                f"--format={SACCT_FORMAT}",
            )
        except MissingTool:
            self._has_accounting = False
            return []
        except StepFailed:
            return []  # the next poll tries again
        if code != 0:
            self._has_accounting = "disabled" not in error
            return []
        return list(read_sacct(answer))

    def _is_lost(self, key: Key, now_s: float) -> bool:
        since_s = self._missing_since_s.get(key)
        return since_s is not None and now_s - since_s >= self._lost_after_s

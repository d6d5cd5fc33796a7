"""Poll Slurm for all jobs of a sweep at once, at a limited rate.

squeue knows jobs that wait, run, or ended some minutes ago (MinJobAge). Older ones are known to
sacct where the site keeps accounts; after that only the note that the job left in the sweep's
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
    Sighting,
    ask_slurm,
    has_ended,
    read_sacct,
    read_squeue,
    run_slurm,
)
from torchyard.sweep.executors.slurm.node_job import read_end

__all__ = ["LOOK_EVERY_S", "SlurmWatch"]

LOOK_EVERY_S: Final = 5.0
LONGEST_PAUSE_S: Final = 60.0
PATIENCE_S: Final = 900.0
"""A controller that is being restarted does not answer; nothing is lost by waiting."""
LOST_AFTER_S: Final = 30.0
"""For accounts to catch up, and for a shared file system to show what a node wrote."""

Key = tuple[str, int]


class SlurmWatch:
    """What Slurm says of jobs, by name and index."""

    def __init__(
        self,
        folder: Path,
        *,
        every_s: float = LOOK_EVERY_S,
        lost_after_s: float = LOST_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._every_s = every_s
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._pause_s = every_s
        self._looked_s: float | None = None
        self._answered_s: float | None = None
        self._seen: dict[Key, Sighting] = {}
        self._missing_since_s: dict[Key, float] = {}
        self._accounts = True
        self.silent_because = ""
        """Why Slurm did not answer the last time; empty when it did."""

    def forget(self) -> None:
        """Look anew at the next call: something was handed in or cancelled."""
        self._looked_s = None

    def look(self, arrays: Sequence[JobArray]) -> dict[Key, Sighting | None]:
        """Every open job of the arrays: as last seen, or None when nobody knows what became of it."""
        now_s = self._clock()
        if arrays and (self._looked_s is None or now_s - self._looked_s >= self._pause_s):
            self._looked_s = now_s
            self._ask(arrays, now_s)
        found: dict[Key, Sighting | None] = {}
        for array in arrays:
            for index in array.open_indexes:
                key = (array.name, index)
                seen = self._seen.get(key)
                if seen is not None:
                    found[key] = seen
                elif self._is_lost(key, now_s):
                    found[key] = None
        return found

    def find(self, names: Sequence[str]) -> dict[str, str]:
        """Numbers of jobs by name, of those that Slurm knows; asks at once."""
        return {seen.name: seen.job for seen in self._squeue(names)}

    def _ask(self, arrays: Sequence[JobArray], now_s: float) -> None:
        try:
            seen = self._squeue([array.name for array in arrays])
        except StepFailed as error:
            self.silent_because = error.what
            # Each question to a silent controller takes many seconds, in which the driver stands still.
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
            if self._answered_s is None or now_s - self._answered_s > PATIENCE_S:
                raise
            return
        self.silent_because = ""
        self._pause_s = self._every_s
        self._answered_s = now_s
        fresh = {(one.name, one.index): one for one in seen}
        wanted = {(array.name, index) for array in arrays for index in array.open_indexes}
        missing = {
            key
            for key in wanted - fresh.keys()
            # What has ended stays so, also when Slurm forgets it between two looks.
            if key not in self._seen or not has_ended(self._seen[key])
        }
        for key in missing:
            self._seen.pop(key, None)
        self._seen.update(fresh)
        self._seen.update(self._from_elsewhere(arrays, missing))
        self._missing_since_s = {
            key: self._missing_since_s.get(key, now_s) for key in missing if key not in self._seen
        }

    def _squeue(self, names: Sequence[str]) -> list[Sighting]:
        if not names:
            return []
        answer = ask_slurm(
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            # By user first: then the controller sends this user's jobs and not everybody's.
            f"--user={os.getuid()}",
            f"--name={','.join(names)}",
            f"--Format={SQUEUE_FORMAT}",
        )
        return list(read_squeue(answer))

    def _from_elsewhere(self, arrays: Sequence[JobArray], missing: set[Key]) -> dict[Key, Sighting]:
        found: dict[Key, Sighting] = {}
        if not missing:
            return found
        jobs = {array.job: array for array in arrays if array.job}
        asked = [job for job, array in jobs.items() if any(key[0] == array.name for key in missing)]
        for seen in self._sacct(asked):
            key = (jobs[seen.job].name, seen.index) if seen.job in jobs else None
            if key in missing and has_ended(seen):
                found[key] = seen
        by_name = {array.name: array for array in arrays}
        for name, index in missing - found.keys():
            end = read_end(self._folder, name, index)
            if end is not None:
                code = int(end["code"])
                found[(name, index)] = Sighting(
                    name=name,
                    index=index,
                    job=by_name[name].job,
                    state="COMPLETED" if code == 0 else "FAILED",
                    code=code,
                    node=str(end.get("place", "")),
                    label=str(end.get("job", "")),
                )
        return found

    def _sacct(self, jobs: Sequence[str]) -> list[Sighting]:
        if not jobs or not self._accounts:
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
            self._accounts = False
            return []
        except StepFailed:
            return []  # the next look asks again
        if code != 0:
            self._accounts = "disabled" not in error
            return []
        return list(read_sacct(answer))

    def _is_lost(self, key: Key, now_s: float) -> bool:
        since_s = self._missing_since_s.get(key)
        return since_s is not None and now_s - since_s >= self._lost_after_s

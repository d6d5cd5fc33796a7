"""Cells as jobs of a Slurm cluster, which go on when the driver goes away.

What was handed in is known from the sweep's folder (`slurm_records`), what became of it from one watcher
(`slurm_watch`). A driver that comes back after a kill, a logout or a reboot makes a new executor of the
same folder, and finds its jobs. Knows nothing of what cells measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.errors import StepFailed, UsageError
from torchyard.executors.executor import Ended, Job
from torchyard.executors.slurm_cell import SLURM_FOLDER, CellJob, read_end
from torchyard.executors.slurm_options import SlurmOptions
from torchyard.executors.slurm_place import check_place
from torchyard.executors.slurm_records import JobArray, JobRecords, new_name
from torchyard.executors.slurm_states import Sighting, as_ended, as_job, has_ended, may_come_back
from torchyard.executors.slurm_submit import (
    Unanswered,
    array_size,
    job_output,
    lay_missing,
    submit_array,
)
from torchyard.executors.slurm_tools import check_tools, run_slurm
from torchyard.executors.slurm_watch import LOOK_EVERY_S, LOST_AFTER_S, SlurmWatch
from torchyard.results.bounded_read import read_tail
from torchyard.results.durable import write_failed

__all__ = ["SlurmExecutor"]

SETTLE_S: Final = 15.0
"""For Slurm to put a job of a failed node, or one that had to make room, back into the queue."""
CANCEL_S: Final = 180.0
_LOG_END_BYTES: Final = 4096


class SlurmExecutor:
    """Hands cells to Slurm as job arrays."""

    def __init__(
        self,
        folder: Path,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        options: SlurmOptions | None = None,
        limit_s: float | None = None,
        look_every_s: float = LOOK_EVERY_S,
        lost_after_s: float = LOST_AFTER_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        """`command` and `log` say what runs for a cell and where it prints, as the nodes see it."""
        check_tools()
        self._folder = folder.absolute()
        self._command = command
        self._log = log
        self._options = (options or SlurmOptions()).with_limit(limit_s)
        self._limit_s = limit_s
        self._settle_s = settle_s
        self._watch = SlurmWatch(self._folder, every_s=look_every_s, lost_after_s=lost_after_s)
        self._records = JobRecords(self._folder)
        self._heard: list[tuple[str, int, str]] = []
        self._ended_since_s: dict[tuple[str, int], float] = {}
        self.notes = check_place(self._folder)
        """What the user should know about the folder."""

    def submit(self, cells: Sequence[str]) -> None:
        """Hand in cells; one that still has a job is not handed in again."""
        self._acknowledge()
        self._find_unnumbered()
        taken = {
            array.cells[i] for array in self._records.open_arrays() for i in array.open_indexes
        }
        new = [cell for cell in dict.fromkeys(cells) if cell not in taken]
        if not new:
            return
        place = self._folder / SLURM_FOLDER
        try:
            place.mkdir(exist_ok=True)
        except OSError as error:
            raise write_failed(place, error, kept="the sweep") from error
        size = array_size()
        for begin in range(0, len(new), size):
            self._submit_array(new[begin : begin + size])

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """What waits or runs, and what has ended and was not told before."""
        self._acknowledge()
        self._find_unnumbered()
        arrays = self._records.open_arrays()
        seen = self._watch.look(arrays)
        jobs: list[Job] = []
        ended: list[Ended] = []
        for array in arrays:
            for index in array.open_indexes:
                now = self._state(array, index, seen)
                if isinstance(now, Ended):
                    ended.append(now)
                    self._heard.append((array.name, index, now.outcome))
                else:
                    jobs.append(now)
        silent = self._watch.silent_because
        if silent:
            jobs = [replace(job, text=f"Slurm does not answer: {silent}") for job in jobs]
        return jobs, ended

    def cancel(self) -> None:
        """Cancel everything that was handed in, and wait until it is gone."""
        self._find_unnumbered()
        numbers = [array.job for array in self._records.open_arrays()]
        if not numbers:
            return
        said = run_slurm("scancel", *numbers)[2]
        deadline_s = time.monotonic() + CANCEL_S
        while left := self._not_ended():
            if time.monotonic() > deadline_s:
                raise StepFailed(
                    f"{len(left)} jobs have not ended {CANCEL_S:g} s after scancel: {', '.join(left)}",
                    why=said,
                    hint=f"scancel {' '.join(numbers)}",
                )
            time.sleep(0.5)

    def leave(self) -> str:
        """Jobs go on; says how to see them."""
        heard = {(name, index) for name, index, _ in self._heard}
        left = [
            array.name
            for array in self._records.open_arrays()
            for index in array.open_indexes
            if (array.name, index) not in heard
        ]
        if not left:
            return "no jobs are left in Slurm"
        count, names = len(left), ",".join(dict.fromkeys(left))
        return (
            f"{count} {'job goes' if count == 1 else 'jobs go'} on in Slurm without this program "
            f"(`squeue --name={names}`), and the next driver finds {'it' if count == 1 else 'them'}"
        )

    def _submit_array(self, cells: Sequence[str]) -> None:
        name = new_name(self._folder)
        array = self._records.intend(name, cells)
        try:
            number = submit_array(self._folder, self._cell_jobs(array), self._options)
        except Unanswered:
            raise  # Slurm may have taken them: they are looked for by name before the next submission
        except UsageError as error:
            self._records.void(name, error.why)
            raise
        self._records.submitted(name, number)
        self._watch.forget()

    def _cell_jobs(self, array: JobArray) -> list[CellJob]:
        return [
            CellJob(
                folder=str(self._folder),
                name=array.name,
                index=index,
                cell=cell,
                argv=tuple(self._command(cell)),
                log=str(self._log(cell)),
                limit_s=self._limit_s,
            )
            for index, cell in enumerate(array.cells)
        ]

    def _find_unnumbered(self) -> None:
        """Submissions of a driver that was killed, or got no answer, before it knew the number."""
        unnumbered = [array for array in self._records.open_arrays() if not array.job]
        if not unnumbered:
            return
        found = self._watch.find([array.name for array in unnumbered])
        for array in unnumbered:
            number = found.get(array.name) or self._number_from_ends(array)
            if number:
                lay_missing(self._folder, number, self._cell_jobs(array))
                self._records.submitted(array.name, number)
            else:
                self._records.void(array.name, "Slurm does not know it")
        self._watch.forget()

    def _number_from_ends(self, array: JobArray) -> str:
        """From the word of a job that has ended, and that Slurm has forgotten."""
        ends = (read_end(self._folder, array.name, i) for i in range(len(array.cells)))
        return next((str(end["job"]).partition("_")[0] for end in ends if end and "job" in end), "")

    def _state(
        self, array: JobArray, index: int, seen: dict[tuple[str, int], Sighting | None]
    ) -> Job | Ended:
        cell, key = array.cells[index], (array.name, index)
        label = array.job_of(index)
        if key not in seen:
            return Job(
                cell=cell, state="queued", place=f"job {label}", text="not seen in Slurm yet"
            )
        sighting = seen[key]
        if sighting is None:
            why = f"Slurm no longer knows job {label}, and it left no word about its end"
            return Ended(cell=cell, outcome="interrupted", why=why)
        if not has_ended(sighting):
            self._ended_since_s.pop(key, None)
            return as_job(cell, sighting)
        if may_come_back(sighting):
            since_s = self._ended_since_s.setdefault(key, time.monotonic())
            if time.monotonic() - since_s < self._settle_s:
                text = f"Slurm says {sighting.state}"
                return Job(cell=cell, state="queued", place=f"job {label}", text=text)
        log_end = self._log_end(sighting.label) if sighting.state == "FAILED" else ""
        return as_ended(cell, sighting, log_end=log_end)

    def _log_end(self, label: str) -> str:
        try:
            tail = read_tail(job_output(self._folder, label), _LOG_END_BYTES)
            return tail.decode("utf-8", "replace")
        except OSError:
            return ""

    def _not_ended(self) -> list[str]:
        self._watch.forget()
        arrays = self._records.open_arrays()
        seen = self._watch.look(arrays)
        left = []
        for array in arrays:
            for index in array.open_indexes:
                sighting = seen.get((array.name, index))
                if sighting is not None and not has_ended(sighting):
                    left.append(sighting.label)
        return left

    def _acknowledge(self) -> None:
        """A driver that polls or submits again has dealt with what it was told.

        One that was killed or interrupted before that is told again.
        """
        self._records.told(self._heard)
        self._heard = []

"""The Slurm executor: submit cells as a job array through submitit, cancel and collect them.

Submitted jobs are known from the sweep's folder (`job_states.py`), their state from one watcher
(`job_watch.py`). A driver that returns after a kill, a logout or a reboot creates a new executor on
the same folder and finds its jobs.

submitit writes the batch script, calls sbatch and stores one pickle per job, which the job loads on
its node. Errors of sbatch become errors that name the option.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.errors import StepFailed, TorchyardError, UsageError
from torchyard.files.safe_reading import read_tail
from torchyard.files.safe_writing import write_failed
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.executors.slurm.job_options import EXTRA_PREFIX, SlurmOptions
from torchyard.sweep.executors.slurm.job_states import (
    JobArray,
    JobRecords,
    Sighting,
    as_ended,
    as_job,
    ask_slurm,
    check_tools,
    has_ended,
    may_come_back,
    new_name,
    run_slurm,
)
from torchyard.sweep.executors.slurm.job_watch import LOOK_EVERY_S, LOST_AFTER_S, SlurmWatch
from torchyard.sweep.executors.slurm.node_job import SLURM_FOLDER, CellJob, read_end

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_A_CONTAINER: Final = frozenset({"overlay", "squashfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def check_place(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[str, ...]:
    """What to tell the user about the folder; raises UsageError when Slurm cannot write there."""
    wrong = [mark for mark in "%\\\n" if mark in str(folder)]
    if wrong:
        raise UsageError(
            f"{str(folder)!r} cannot be the folder of a sweep on Slurm",
            why=f"{wrong[0]!r} has a meaning of its own in Slurm's names of files",
            hint="name a folder with letters, digits, dashes and dots",
        )
    kind = file_system_of(folder, mounts)
    if kind in _IN_MEMORY:
        return (
            f"{folder} is in the memory of this node ({kind}): jobs on other nodes cannot see it",
        )
    if kind in _OF_A_CONTAINER:
        return (f"{folder} is inside a container ({kind}): jobs may not see it",)
    return ()


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that holds the folder: `nfs4`, `ext4`; empty where it is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    path = folder.resolve()
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or not kinds:  # noqa: PLR2004 - see proc(5)
            continue
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # The last of several mounts on one place is the one that is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), kinds[0]
    return kind


_MOST_IN_ARRAY: Final = 1000
_NO_ANSWER: Final = re.compile(
    r"unable to contact|socket timed out|connection (refused|reset|timed out)|zero bytes|"
    r"temporarily unable|communication|message timeout|backup controller",
    re.IGNORECASE,
)
_ABOUT: Final = (
    # What sbatch says, and which option of ours it is about.
    (r"account or account/partition|invalid account", "account"),
    (r"violates accounting|policy|qos", "qos"),
    (r"partition", "partition"),
    (r"generic resource|gres|gpu", "gpus"),
    (r"time limit|--time", "time"),
    (r"memory|--mem", "memory"),
    (r"cpu count|cpus-per-task|processors requested", "cpus"),
    (r"feature|constraint", "slurm-constraint"),
    (r"node configuration is not available", "gpus, cpus, memory or exclusive"),
)
_UNKNOWN_OPTION: Final = re.compile(r"unrecognized option '--([a-z0-9-]+)")


class Unanswered(StepFailed):
    """Slurm did not say whether it took the jobs."""


def array_size() -> int:
    """How many jobs one array may have on this cluster."""
    settings = ask_slurm("scontrol", "show", "config")
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.MULTILINE)
    return max(1, min(_MOST_IN_ARRAY, int(match[1]) if match else _MOST_IN_ARRAY))


def submit_array(folder: Path, jobs: Sequence[CellJob], options: SlurmOptions) -> str:
    """Slurm's number for the jobs, which all have the same name; raises with Slurm's own words."""
    import submitit

    executor = submitit.SlurmExecutor(folder=folder / SLURM_FOLDER)
    executor.update_parameters(**_parameters(jobs[0].name, len(jobs), options))
    said = io.StringIO()  # submitit prints what sbatch says before it raises
    try:
        with redirect_stderr(said), _outside_of_a_job():
            handed_in = executor.submit_array(list(jobs))
    except submitit.core.utils.FailedJobError as error:
        raise _refusal(str(error), options) from error
    except submitit.core.utils.FailedSubmissionError as error:
        raise Unanswered(
            "sbatch did not say the number of the job", why=str(error).splitlines()[0]
        ) from error
    return str(handed_in[0].job_id).partition("_")[0]


def lay_missing(folder: Path, job: str, jobs: Sequence[CellJob]) -> None:
    """Lay the pickles that a killed driver could not lay any more; a job waits a minute for its own."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    for index, cell_job in enumerate(jobs):
        number = f"{job}_{index}" if len(jobs) > 1 else job
        path = JobPaths(folder / SLURM_FOLDER, job_id=number).submitted_pickle
        if not path.exists():
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            DelayedSubmission(cell_job).dump(beside)
            beside.replace(path)


def job_output(folder: Path, label: str) -> Path:
    """What Slurm and submitit print in a job, where its cell's command has a log of its own."""
    return folder / SLURM_FOLDER / f"{label}_0_log.out"


def _parameters(name: str, count: int, options: SlurmOptions) -> dict[str, Any]:
    extra: dict[str, Any] = {"requeue": True, **dict(options.extra)}
    parameters: dict[str, Any] = {
        "job_name": name,
        "nodes": 1,
        "ntasks_per_node": 1,
        # None: not in the script at all. submitit would ask for 5 minutes and for a key of its own.
        "time": options.time_min,
        "wckey": None,
        "partition": options.partition or None,
        "account": options.account or None,
        "qos": options.qos or None,
        "gpus_per_node": options.gpus or None,
        "exclusive": options.exclusive or None,
        "cpus_per_task": options.cpus,
        "mem": options.memory or None,
        "array_parallelism": options.at_most or count,
        # 0: no signal before the time is over, at which submitit would end the job by itself.
        "signal_delay_s": 0,
        "stderr_to_stdout": True,
        # One task on one node: the batch script has the whole allocation already. Under srun a step
        # would get fewer CPUs than the job (since Slurm 22.05 it does not inherit --cpus-per-task).
        "use_srun": False,
        "additional_parameters": extra,
    }
    return parameters


@contextmanager
def _outside_of_a_job() -> Iterator[None]:
    """A driver may itself run in a job (`srun --pty`); what that asked for is not for its cells."""
    inner = {}
    if "SLURM_JOB_ID" in os.environ:
        prefixes = ("SLURM_", "SRUN_", "SUBMITIT_")
        names = [key for key in os.environ if key.startswith(prefixes) and key != "SLURM_CONF"]
        inner = {key: os.environ.pop(key) for key in names}
    try:
        yield
    finally:
        os.environ.update(inner)


def _refusal(said: str, options: SlurmOptions) -> TorchyardError:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines()]
    words = " / ".join(line.strip() for line in lines if line.strip()) or "it said nothing"
    if _NO_ANSWER.search(words):
        return Unanswered(
            f"Slurm did not answer: {words}",
            hint="go on with the sweep later (--resume): jobs that it took after all are found again",
        )
    unknown = _UNKNOWN_OPTION.search(words)
    if unknown is not None:
        about = EXTRA_PREFIX + unknown[1]
    else:
        about = next((name for text, name in _ABOUT if re.search(text, words, re.IGNORECASE)), "")
    what = f"Slurm refuses the jobs because of {about}" if about else "Slurm refuses the jobs"
    return UsageError(what, why=f"sbatch says: {words}", hint=_hint(about, options))


def _hint(about: str, options: SlurmOptions) -> str:
    if about == "partition":
        asked = f"not {options.partition!r}" if options.partition else "none was named"
        return f"`sinfo` lists the partitions there are ({asked})"
    if about in ("account", "qos"):
        return "`sacctmgr show associations user=$USER` lists what you may use"
    if about.startswith(EXTRA_PREFIX):
        return f"see {about.removeprefix(EXTRA_PREFIX)} in sbatch(1)"
    return "`sinfo --Node --long` and `scontrol show partition` say what the nodes have"


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

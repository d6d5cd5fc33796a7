"""The Slurm executor: submit cells as job arrays through submitit, cancel and collect them.

Submitted jobs are recorded in the sweep's folder (`job_states.py`); `job_polling.py` polls their
states. After a kill, a logout or a reboot, a new driver opens an executor on the same folder and
finds the jobs.

submitit writes the batch script, calls sbatch and stores one pickle per job, which the job loads on
its node. Errors of sbatch are reported with the option that caused them.
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
from torchyard.files.safe_reading import read_tail_text
from torchyard.files.safe_writing import write_errors
from torchyard.results.index.entries import file_system_of
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.executors.slurm.job_options import EXTRA_PREFIX, SlurmOptions
from torchyard.sweep.executors.slurm.job_polling import LOST_AFTER_S, POLL_INTERVAL_S, SlurmWatch
from torchyard.sweep.executors.slurm.job_states import (
    JobArray,
    JobInfo,
    JobRecords,
    as_ended,
    as_job,
    ask_slurm,
    check_tools,
    has_ended,
    may_be_requeued,
    new_name,
    run_slurm,
)
from torchyard.sweep.executors.slurm.node_job import SLURM_FOLDER, CellJob, read_end

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_A_CONTAINER: Final = frozenset({"overlay", "squashfs"})


def check_sweep_folder(
    folder: Path, mounts: Path = Path("/proc/self/mountinfo")
) -> tuple[str, ...]:
    """Return notes about the folder; raise UsageError if Slurm cannot write there."""
    invalid = [mark for mark in "%\\\n" if mark in str(folder)]
    if invalid:
        raise UsageError(
            f"{str(folder)!r} cannot be the folder of a sweep on Slurm",
            why=f"{invalid[0]!r} has a special meaning in Slurm's file names",
            hint="use a folder name with letters, digits, dashes and dots",
        )
    kind = file_system_of(folder, mounts)
    if kind in _IN_MEMORY:
        return (
            f"{folder} is in the memory of this node ({kind}): jobs on other nodes cannot see it",
        )
    if kind in _OF_A_CONTAINER:
        return (f"{folder} is inside a container ({kind}): jobs may not see it",)
    return ()


_MOST_IN_ARRAY: Final = 1000
_NO_ANSWER: Final = re.compile(
    r"unable to contact|socket timed out|connection (refused|reset|timed out)|zero bytes|"
    r"temporarily unable|communication|message timeout|backup controller",
    re.IGNORECASE,
)
_ABOUT: Final = (
    # Pattern of an sbatch error message, and the option of Torchyard that it is about.
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


class SlurmUnreachable(StepFailed):
    """It is unknown whether Slurm accepted the jobs."""


def array_size() -> int:
    """Return the maximum size of a job array on this cluster."""
    settings = ask_slurm("scontrol", "show", "config")
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.MULTILINE)
    return max(1, min(_MOST_IN_ARRAY, int(match[1]) if match else _MOST_IN_ARRAY))


def submit_array(folder: Path, jobs: Sequence[CellJob], options: SlurmOptions) -> str:
    """Submit jobs of the same name and return the job id; errors contain sbatch's message."""
    import submitit

    executor = submitit.SlurmExecutor(folder=folder / SLURM_FOLDER)
    executor.update_parameters(**_parameters(jobs[0].name, len(jobs), options))
    output = io.StringIO()  # submitit prints the output of sbatch before it raises
    try:
        with redirect_stderr(output), _outside_of_a_job():
            submitted = executor.submit_array(list(jobs))
    except submitit.core.utils.FailedJobError as error:
        raise _submission_error(str(error), options) from error
    except submitit.core.utils.FailedSubmissionError as error:
        raise SlurmUnreachable(
            "sbatch did not return a job id", why=str(error).splitlines()[0]
        ) from error
    return str(submitted[0].job_id).partition("_")[0]


def write_missing_pickles(folder: Path, job: str, jobs: Sequence[CellJob]) -> None:
    """Write pickles that a killed driver did not write; a job waits a minute for its pickle."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    for index, cell_job in enumerate(jobs):
        number = f"{job}_{index}" if len(jobs) > 1 else job
        path = JobPaths(folder / SLURM_FOLDER, job_id=number).submitted_pickle
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            DelayedSubmission(cell_job).dump(temporary)
            temporary.replace(path)


def job_output(folder: Path, label: str) -> Path:
    """Return the output file of Slurm and submitit; the cell's command has a separate log."""
    return folder / SLURM_FOLDER / f"{label}_0_log.out"


def _parameters(name: str, count: int, options: SlurmOptions) -> dict[str, Any]:
    extra: dict[str, Any] = {"requeue": True, **dict(options.extra)}
    parameters: dict[str, Any] = {
        "job_name": name,
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        # None: not in the script. Otherwise submitit requests 5 minutes and sets a wckey.
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
        # 0: no signal before the time limit; submitit would end the job on that signal.
        "signal_delay_s": 0,
        "stderr_to_stdout": True,
        # The batch script has the whole allocation of the first node already. Under srun a step
        # would get fewer CPUs than the job (since Slurm 22.05 it does not inherit --cpus-per-task).
        "use_srun": False,
        "additional_parameters": extra,
    }
    return parameters


@contextmanager
def _outside_of_a_job() -> Iterator[None]:
    """Hide the variables of a job that the driver itself runs in, for example `srun --pty`."""
    hidden = {}
    if "SLURM_JOB_ID" in os.environ:
        prefixes = ("SLURM_", "SRUN_", "SUBMITIT_")
        names = [key for key in os.environ if key.startswith(prefixes) and key != "SLURM_CONF"]
        hidden = {key: os.environ.pop(key) for key in names}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _submission_error(output: str, options: SlurmOptions) -> TorchyardError:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in output.splitlines()]
    message = " / ".join(line.strip() for line in lines if line.strip()) or "no error message"
    if _NO_ANSWER.search(message):
        return SlurmUnreachable(
            f"Slurm is not reachable: {message}",
            hint="resume the sweep later (--resume); jobs that Slurm accepted will be found",
        )
    unknown = _UNKNOWN_OPTION.search(message)
    if unknown is not None:
        about = EXTRA_PREFIX + unknown[1]
    else:
        about = next((name for text, name in _ABOUT if re.search(text, message, re.IGNORECASE)), "")
    what = f"Slurm rejected the jobs because of {about}" if about else "Slurm rejected the jobs"
    return UsageError(what, why=f"sbatch: {message}", hint=_hint(about, options))


def _hint(about: str, options: SlurmOptions) -> str:
    if about == "partition":
        requested = f"not {options.partition!r}" if options.partition else "none was given"
        return f"list the partitions with `sinfo` ({requested})"
    if about in ("account", "qos"):
        return "list what you may use with `sacctmgr show associations user=$USER`"
    if about.startswith(EXTRA_PREFIX):
        return f"see {about.removeprefix(EXTRA_PREFIX)} in sbatch(1)"
    return "see the resources of nodes with `sinfo --Node --long` and `scontrol show partition`"


SETTLE_S: Final = 15.0
"""Time for Slurm to requeue a preempted job or a job of a failed node."""
CANCEL_S: Final = 180.0
_LOG_END_BYTES: Final = 4096


class SlurmExecutor:
    """Submits cells to Slurm as job arrays."""

    def __init__(
        self,
        folder: Path,
        command: Callable[[str], Sequence[str]],
        log: Callable[[str], Path],
        *,
        options: SlurmOptions | None = None,
        limit_s: float | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
        lost_after_s: float = LOST_AFTER_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        """`command` and `log` return the command and log file of a cell, as the nodes see them."""
        check_tools()
        self._folder = folder.absolute()
        self._command = command
        self._log = log
        self._options = (options or SlurmOptions()).with_limit(limit_s)
        self._limit_s = limit_s
        self._settle_s = settle_s
        self._watch = SlurmWatch(self._folder, every_s=poll_interval_s, lost_after_s=lost_after_s)
        self._records = JobRecords(self._folder)
        self._unacknowledged: list[tuple[str, int, str]] = []
        self._ended_since_s: dict[tuple[str, int], float] = {}
        self.notes = check_sweep_folder(self._folder)
        """Notes for the user about the folder."""

    def submit(self, cells: Sequence[str]) -> None:
        """Submit cells, except those that still have a job."""
        self._acknowledge()
        self._find_job_ids()
        submitted = {
            array.cells[i] for array in self._records.open_arrays() for i in array.open_indexes
        }
        new = [cell for cell in dict.fromkeys(cells) if cell not in submitted]
        if not new:
            return
        place = self._folder / SLURM_FOLDER
        with write_errors(place, kept="the sweep"):
            place.mkdir(exist_ok=True)
        size = array_size()
        for begin in range(0, len(new), size):
            self._submit_array(new[begin : begin + size])

    def poll(self) -> tuple[list[Job], list[Ended]]:
        """Return queued and running cells, and ended cells that were not reported before."""
        self._acknowledge()
        self._find_job_ids()
        arrays = self._records.open_arrays()
        states = self._watch.poll(arrays)
        jobs: list[Job] = []
        ended: list[Ended] = []
        for array in arrays:
            for index in array.open_indexes:
                state = self._state(array, index, states)
                if isinstance(state, Ended):
                    ended.append(state)
                    self._unacknowledged.append((array.name, index, state.outcome))
                else:
                    jobs.append(state)
        error = self._watch.last_error
        if error:
            jobs = [replace(job, text=f"Slurm is not reachable: {error}") for job in jobs]
        return jobs, ended

    def cancel(self) -> None:
        """Cancel all submitted jobs and wait until they have ended."""
        self._find_job_ids()
        numbers = [array.job for array in self._records.open_arrays()]
        if not numbers:
            return
        scancel_error = run_slurm("scancel", *numbers)[2]
        deadline_s = time.monotonic() + CANCEL_S
        while running := self._not_ended():
            if time.monotonic() > deadline_s:
                raise StepFailed(
                    f"{len(running)} jobs have not ended {CANCEL_S:g} s after scancel: "
                    + ", ".join(running),
                    why=scancel_error,
                    hint=f"scancel {' '.join(numbers)}",
                )
            time.sleep(0.5)

    def wait(self, pause_s: float) -> None:
        """Wait before the next query of the cluster."""
        time.sleep(pause_s)

    def detach(self) -> str:
        """Return a message about the jobs, which continue in Slurm."""
        ended = {(name, index) for name, index, _ in self._unacknowledged}
        names = [
            array.name
            for array in self._records.open_arrays()
            for index in array.open_indexes
            if (array.name, index) not in ended
        ]
        if not names:
            return "no jobs remain in Slurm"
        count = len(names)
        return (
            f"{count} {'job continues' if count == 1 else 'jobs continue'} in Slurm "
            f"(`squeue --name={','.join(dict.fromkeys(names))}`) and will be found by --resume"
        )

    def _submit_array(self, cells: Sequence[str]) -> None:
        name = new_name(self._folder)
        array = self._records.intend(name, cells)
        try:
            number = submit_array(self._folder, self._cell_jobs(array), self._options)
        except SlurmUnreachable:
            raise  # Slurm may have accepted them: the next submission looks for them by name
        except UsageError as error:
            self._records.void(name, error.why)
            raise
        self._records.submitted(name, number)
        self._watch.invalidate()

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

    def _find_job_ids(self) -> None:
        """Find the ids of submissions whose driver was killed, or got no answer from Slurm."""
        without_id = [array for array in self._records.open_arrays() if not array.job]
        if not without_id:
            return
        ids = self._watch.find([array.name for array in without_id])
        for array in without_id:
            number = ids.get(array.name) or self._id_from_end_records(array)
            if number:
                write_missing_pickles(self._folder, number, self._cell_jobs(array))
                self._records.submitted(array.name, number)
            else:
                self._records.void(array.name, "it is not in Slurm")
        self._watch.invalidate()

    def _id_from_end_records(self, array: JobArray) -> str:
        """Return the id from the end record of a job that Slurm has forgotten."""
        ends = (read_end(self._folder, array.name, i) for i in range(len(array.cells)))
        return next((str(end["job"]).partition("_")[0] for end in ends if end and "job" in end), "")

    def _state(
        self, array: JobArray, index: int, states: dict[tuple[str, int], JobInfo | None]
    ) -> Job | Ended:
        cell, key = array.cells[index], (array.name, index)
        label = array.job_of(index)
        if key not in states:
            return Job(
                cell=cell, state="queued", place=f"job {label}", text="not seen in Slurm yet"
            )
        info = states[key]
        if info is None:
            why = f"job {label} is no longer in Slurm, and wrote no end record"
            return Ended(cell=cell, outcome="interrupted", why=why)
        if not has_ended(info):
            self._ended_since_s.pop(key, None)
            return as_job(cell, info)
        if may_be_requeued(info):
            since_s = self._ended_since_s.setdefault(key, time.monotonic())
            if time.monotonic() - since_s < self._settle_s:
                text = f"Slurm state {info.state}"
                return Job(cell=cell, state="queued", place=f"job {label}", text=text)
        log = job_output(self._folder, info.label)
        log_end = read_tail_text(log, _LOG_END_BYTES) if info.state == "FAILED" else ""
        return as_ended(cell, info, log_end=log_end)

    def _not_ended(self) -> list[str]:
        self._watch.invalidate()
        arrays = self._records.open_arrays()
        states = self._watch.poll(arrays)
        running = []
        for array in arrays:
            for index in array.open_indexes:
                info = states.get((array.name, index))
                if info is not None and not has_ended(info):
                    running.append(info.label)
        return running

    def _acknowledge(self) -> None:
        """Record the ends that the driver has processed, now that it polls or submits again.

        If the driver is killed before, they are reported again.
        """
        self._records.mark_reported(self._unacknowledged)
        self._unacknowledged = []

"""Handing cells to Slurm as one job array, through submitit.

submitit writes the batch script, calls sbatch and lays one pickle per job beside it, which the job
loads on its node. Refusals of sbatch become errors that name the option. Knows nothing of how jobs go on.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Final

from torchyard.errors import StepFailed, TorchyardError, UsageError
from torchyard.executors.slurm_cell import SLURM_FOLDER, CellJob
from torchyard.executors.slurm_options import EXTRA_PREFIX, SlurmOptions
from torchyard.executors.slurm_tools import ask_slurm

__all__ = ["Unanswered", "array_size", "job_output", "lay_missing", "submit_array"]

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

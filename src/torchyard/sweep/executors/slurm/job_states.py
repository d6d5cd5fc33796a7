"""Slurm commands and their output, job states, and the record of submitted jobs.

The record is kept in the sweep's folder and is also read by jobs on the nodes:

{"event": "intent", "name": N, "cells": [...]}   before sbatch is called
{"event": "submitted", "name": N, "job": "12"}   when Slurm has returned the job id
{"event": "void", "name": N}                     it never reached Slurm; a job of it must not run
{"event": "told", "name": N, "index": 3, ...}    the end of this job was reported to the driver

Names are unique, so that a job whose id was never written can be found by its name.

States were checked against Slurm 22.05; newer or rare ones are from its manual (squeue(1), JOB STATE
CODES). An unknown state counts as not ended, so that no cell is measured twice.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from torchyard.errors import MissingTool, ResultsDamaged, StepFailed
from torchyard.files.safe_reading import read_records
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.results.directory import utc_timestamp
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.model import Outcome

REQUIRED_TOOLS: Final = ("sbatch", "squeue", "scancel", "scontrol")
_USER_FORMAT_PREFIXES: Final = ("SQUEUE_", "SACCT_", "SCANCEL_")
TIMEOUT_S: Final = 60.0
"""Slurm's own limit (MessageTimeout) is often 10 s, and its commands retry several times."""


def check_tools() -> None:
    """Raise MissingTool if jobs cannot be submitted from this machine."""
    missing = [name for name in REQUIRED_TOOLS if shutil.which(name) is None]
    if missing:
        raise MissingTool(
            f"{', '.join(missing)} not found",
            why="the Slurm executor submits cells with Slurm's client commands",
            hint="run this on a login node of the cluster, or install Slurm's client commands "
            "(slurm-client on Debian and Ubuntu, slurm on Fedora)",
        )
    if find_spec("submitit") is None:
        raise MissingTool(
            "submitit is not installed",
            why="the Slurm executor submits jobs with it",
            hint="pip install 'torchyard[cluster]'",
        )


def run_slurm(name: str, *arguments: str, limit_s: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Run a Slurm command and return exit code, stdout and stderr; a timeout is StepFailed."""
    line = shlex.join((name, *arguments))
    try:
        completed = subprocess.run(
            [name, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            # Sites may set other output formats and filters for users.
            env={**_variables(), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(
            f"`{line}` timed out after {limit_s:g} s",
            hint="check that the Slurm controller is running",
        ) from None
    except OSError as error:
        raise MissingTool(f"cannot run {name}: {error.strerror or error}") from error
    return completed.returncode, completed.stdout, completed.stderr.strip()


def ask_slurm(name: str, *arguments: str) -> str:
    """Return the output of a Slurm command; raise StepFailed with its error message on failure."""
    code, output, error = run_slurm(name, *arguments)
    if code != 0:
        raise StepFailed(
            f"{name} failed with exit code {code}: {error or 'no error message'}",
            why=f"the command was `{shlex.join((name, *arguments))}`",
            hint="run the command yourself to see the problem; submitted jobs continue",
        )
    return output


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_USER_FORMAT_PREFIXES)
    }


JOBS_FILE: Final = "jobs.jsonl"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_TITLE: Final = 24


@dataclass(kw_only=True)
class JobArray:
    """Cells that were submitted together: element `i` of the array runs `cells[i]`."""

    name: str
    cells: tuple[str, ...]
    at: str = ""
    job: str = ""
    """Slurm's job id; empty until it is known."""
    void: bool = False
    reported: dict[int, str] = field(default_factory=dict)
    """Outcomes by index that were reported to the driver."""

    @property
    def open_indexes(self) -> list[int]:
        """Indexes of the jobs whose end was not reported yet."""
        if self.void:
            return []
        return [index for index in range(len(self.cells)) if index not in self.reported]

    def job_of(self, index: int) -> str:
        """Return the job id in Slurm's notation."""
        return f"{self.job}_{index}" if len(self.cells) > 1 else self.job


def new_name(folder: Path) -> str:
    """Return a unique job name, which squeue shows."""
    title = _UNSAFE.sub("-", folder.name).strip("-")[:_LONGEST_TITLE].strip("-")
    return f"torchyard-{title or 'sweep'}-{secrets.token_hex(6)}"


class JobRecords:
    """The record of submitted jobs, read once and rewritten with each addition."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOBS_FILE
        self.arrays: dict[str, JobArray] = {}
        self._lines: list[str] = []
        if self.path.exists():
            for number, record in read_records(self.path):
                try:
                    self._apply(record)
                except (KeyError, TypeError, ValueError) as error:
                    raise ResultsDamaged(
                        f"{self.path}, line {number}: not a record of a job",
                        why=f"{type(error).__name__}: {error}",
                        hint="restore the file from a backup; without it, running jobs cannot be found",
                    ) from error
                self._lines.append(to_json_text(record))

    def open_arrays(self) -> list[JobArray]:
        """Return the arrays with open jobs, oldest first."""
        return [array for array in self.arrays.values() if array.open_indexes]

    def intend(self, name: str, cells: Sequence[str]) -> JobArray:
        """Record a submission before it happens."""
        self._add({"event": "intent", "name": name, "cells": list(cells), "at": utc_timestamp()})
        return self.arrays[name]

    def submitted(self, name: str, job: str) -> None:
        """Record the job id that Slurm returned."""
        self._add({"event": "submitted", "name": name, "job": job, "at": utc_timestamp()})

    def void(self, name: str, why: str) -> None:
        """Record that a submission failed; if it reached Slurm after all, its jobs do nothing."""
        self._add({"event": "void", "name": name, "why": why, "at": utc_timestamp()})

    def mark_reported(self, ends: Sequence[tuple[str, int, str]]) -> None:
        """Record that these ends were reported to the driver: name, index, outcome."""
        self._add(
            *(
                {"event": "told", "name": name, "index": index, "outcome": outcome}
                for name, index, outcome in ends
            )
        )

    def _add(self, *records: Mapping[str, Any]) -> None:
        if not records:
            return
        lines = [*self._lines, *(to_json_text(record) for record in records)]
        replace_file(self.path, "".join(line + "\n" for line in lines))
        self._lines = lines
        for record in records:
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        name = str(record["name"])
        event = record["event"]
        if event == "intent":
            cells = tuple(str(cell) for cell in record["cells"])
            self.arrays[name] = JobArray(name=name, cells=cells, at=str(record.get("at", "")))
        elif event == "submitted":
            self.arrays[name].job = str(record["job"])
        elif event == "void":
            self.arrays[name].void = True
        elif event == "told":
            self.arrays[name].reported[int(record["index"])] = str(record["outcome"])


def is_void(folder: Path, name: str) -> bool:
    """Return whether a job of this name must not run; called on the node, read-only."""
    path = folder / JOBS_FILE
    if not path.exists():
        return False
    return any(
        record.get("event") == "void" and record.get("name") == name
        for _, record in read_records(path)
    )


SQUEUE_FORMAT: Final = ",".join(
    f"{field}:|"
    for field in ("Name", "ArrayJobID", "ArrayTaskID", "State", "exit_code", "NodeList", "Reason")
)
SACCT_FORMAT: Final = "JobName,JobID,State,ExitCode,NodeList"

_ENDS: Final[dict[str, tuple[Outcome, str]]] = {
    "COMPLETED": ("finished", ""),
    "CANCELLED": ("cancelled", "cancelled in Slurm"),
    "FAILED": ("died", ""),
    "TIMEOUT": ("time-limit", "exceeded its Slurm time limit"),
    "DEADLINE": ("time-limit", "could not finish before its Slurm deadline"),
    "OUT_OF_MEMORY": ("memory-limit", "exceeded its Slurm memory limit"),
    "PREEMPTED": ("pre-empted", "preempted by another job and not requeued"),
    "NODE_FAIL": ("node-failed", "its node failed, and it was not requeued"),
    "BOOT_FAIL": ("node-failed", "its node could not be started"),
    "REVOKED": ("cancelled", "it ran on another cluster of the federation"),
}
"""Final state -> outcome of the cell, and why."""
_RUNNING: Final = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
)
_WAITS: Final = {
    "Resources": "waiting for resources",
    "Priority": "jobs with higher priority are queued",
    "JobArrayTaskLimit": "the limit of concurrent jobs is reached",
    "BeginTime": "requeued, starts again soon",
    "JobHeldUser": "held by the user: `scontrol release JOB`",
    "JobHeldAdmin": "held by an administrator",
    "launch failed requeued held": "could not be started and is held: `scontrol release JOB`",
}
_OF_NO_TASK: Final = "N/A"
_SIGNALLED: Final = 128
TIME_LIMIT_CODE: Final = 124
"""The same exit code as coreutils' timeout."""


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """The state of a job as reported by Slurm."""

    name: str
    index: int
    job: str
    """Id of the whole array."""
    state: str
    code: int = 0
    """Exit code as in a shell: 128 plus the signal number for a signal."""
    node: str = ""
    reason: str = ""
    label: str = ""
    """`12_3`, or `12` if it is not an array."""


def read_squeue(text: str) -> Iterator[JobInfo]:
    """Parse the output of `squeue --array` in SQUEUE_FORMAT."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < SQUEUE_FORMAT.count("|"):
            continue
        name, job, task, state, status, node, reason = (field.strip() for field in fields[:7])
        index = 0 if task == _OF_NO_TASK else _number(task)
        if index is None or not job.isdecimal():
            continue
        yield JobInfo(
            name=name,
            index=index,
            job=job,
            state=state,
            code=_code_of_wait_status(_number(status) or 0),
            node=node,
            reason="" if reason in ("None", "(null)") else reason,
            label=job if task == _OF_NO_TASK else f"{job}_{task}",
        )


_SACCT_JOB: Final = re.compile(r"(\d+)(?:_(\d+))?")


def read_sacct(text: str) -> Iterator[JobInfo]:
    """Parse the output of `sacct --parsable2 --noheader --allocations` in SACCT_FORMAT."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < SACCT_FORMAT.count(",") + 1:
            continue
        name, job, state, exit_code, node = (field.strip() for field in fields[:5])
        match = _SACCT_JOB.fullmatch(job)  # `12_[3-7]` are elements that never started
        if match is None or not state:
            continue
        code, _, number = exit_code.partition(":")
        ended_by = _number(number) or 0
        yield JobInfo(
            name=name,
            index=int(match[2] or 0),
            job=match[1],
            state=state.split()[0],  # `CANCELLED by 1000`
            code=_SIGNALLED + ended_by if ended_by else _number(code) or 0,
            node="" if node == "None assigned" else node,
            label=job,
        )


def has_ended(info: JobInfo) -> bool:
    """Return whether the job is in a final state."""
    return info.state in _ENDS


def may_be_requeued(info: JobInfo) -> bool:
    """Return whether Slurm may still requeue the job, as requested with --requeue."""
    return info.state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")


def as_job(cell: str, info: JobInfo) -> Job:
    """Convert the state of a job that has not ended."""
    place = f"{info.node}, job {info.label}" if info.node else f"job {info.label}"
    if info.state in _RUNNING:
        text = "" if info.state == "RUNNING" else f"Slurm state {info.state}"
        return Job(cell=cell, state="running", place=place, text=text)
    reason = info.reason.replace("_", " ")
    text = _WAITS.get(reason, reason)
    if info.state != "PENDING":
        text = f"Slurm state {info.state}" + (f" ({text})" if text else "")
    return Job(cell=cell, state="queued", place=place, text=text)


def as_ended(cell: str, info: JobInfo, *, log_end: str = "") -> Ended:
    """Convert the state of a job that has ended; `log_end` is the end of its output."""
    outcome, why = _ENDS[info.state]
    if info.state == "FAILED":
        if not info.node:
            outcome, why = (
                "refused",
                f"Slurm refused to start it: {info.reason or 'no reason given'}",
            )
        elif _reports_out_of_memory(log_end):
            outcome, why = _ENDS["OUT_OF_MEMORY"]
        else:
            outcome, why = code_outcome(info.code)
    if why:
        where = f" on {info.node}" if info.node else ""
        why = f"{why} (job {info.label}{where})"
    return Ended(cell=cell, outcome=outcome, why=why)


def code_outcome(code: int) -> tuple[Outcome, str]:
    """Return the outcome of a cell's command and the reason, from its exit code."""
    if code == 0:
        return "finished", ""
    if code == TIME_LIMIT_CODE:
        return "time-limit", "exceeded its time limit"
    if code == _SIGNALLED + signal.SIGINT:
        return "interrupted", "interrupted"
    if _SIGNALLED < code < _SIGNALLED + signal.NSIG:
        try:
            name = signal.Signals(code - _SIGNALLED).name
        except ValueError:
            name = f"signal {code - _SIGNALLED}"
        if name in ("SIGTERM", "SIGHUP"):
            return "interrupted", f"its process received {name}"
        verb = "was killed" if name == "SIGKILL" else "crashed"
        return "died", f"its process {verb} ({name})"
    return "died", f"its process exited with code {code}"


def _reports_out_of_memory(log_end: str) -> bool:
    """Detect an out-of-memory kill in the job's output: without cgroups the state is just FAILED."""
    return "slurmstepd" in log_end and (
        "xceeded job memory limit" in log_end
        or "oom-kill event" in log_end
        or "oom_kill" in log_end
    )


def _code_of_wait_status(status: int) -> int:
    """Convert a wait() status from squeue to an exit code: 1792 is exit code 7, 9 is SIGKILL."""
    ended_by = status & 0x7F
    return _SIGNALLED + ended_by if ended_by else (status >> 8) & 0xFF


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None

"""Slurm's programs and their answers, job states, and the record of submitted jobs.

The record is kept in the sweep's folder and is also read by jobs on the nodes:

{"event": "intent", "name": N, "cells": [...]}   before sbatch is called
{"event": "submitted", "name": N, "job": "12"}   when Slurm has returned the job id
{"event": "void", "name": N}                     it never reached Slurm; a job of it must not run
{"event": "told", "name": N, "index": 3, ...}    the driver has learned how this one ended

A name is unique, so that a job whose id was never written is found by it.

States were checked against Slurm 22.05; later or rare ones are from its manual (squeue(1), JOB
STATE CODES). An unknown state counts as not ended: it is better to wait than to measure twice.
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
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from torchyard.errors import MissingTool, ResultsDamaged, StepFailed
from torchyard.files.safe_reading import read_records
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.model import Outcome

NEEDED: Final = ("sbatch", "squeue", "scancel", "scontrol")
_OF_USERS: Final = ("SQUEUE_", "SACCT_", "SCANCEL_")
LIMIT_S: Final = 60.0
"""A controller that is busy may take its time; Slurm's own limit (MessageTimeout) is often 10 s, and
its programs try several times."""


def check_tools() -> None:
    """Raises MissingTool when jobs cannot be handed in from here."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise MissingTool(
            f"there is no {', '.join(missing)} here",
            why="the Slurm executor hands cells to a Slurm cluster through its own programs",
            hint="run this on a login node of the cluster, or install Slurm's client programs "
            "(slurm-client on Debian and Ubuntu, slurm on Fedora)",
        )
    if find_spec("submitit") is None:
        raise MissingTool(
            "submitit is not installed",
            why="jobs are handed to Slurm by it",
            hint="pip install 'torchyard[cluster]'",
        )


def run_slurm(name: str, *arguments: str, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program of Slurm; a hang is StepFailed."""
    line = shlex.join((name, *arguments))
    try:
        done = subprocess.run(
            [name, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            # Sites may set other formats and filters for people.
            env={**_variables(), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(
            f"`{line}` did not answer within {limit_s:g} s", hint="is the Slurm controller up?"
        ) from None
    except OSError as error:
        raise MissingTool(f"cannot run {name}: {error.strerror or error}") from error
    return done.returncode, done.stdout, done.stderr.strip()


def ask_slurm(name: str, *arguments: str) -> str:
    """What a program of Slurm answers; raises StepFailed with its own words when it does not."""
    code, said, error = run_slurm(name, *arguments)
    if code != 0:
        raise StepFailed(
            f"{name} ended with {code}: {error or 'it said nothing'}",
            why=f"it was asked `{shlex.join((name, *arguments))}`",
            hint="ask Slurm yourself; what was handed in goes on",
        )
    return said


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_USERS)}


JOBS_FILE: Final = "jobs.jsonl"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_TITLE: Final = 24


@dataclass(kw_only=True)
class JobArray:
    """Cells that were handed in together: element `i` of the array runs `cells[i]`."""

    name: str
    cells: tuple[str, ...]
    at: str = ""
    job: str = ""
    """Slurm's number; empty until it is known."""
    void: bool = False
    told: dict[int, str] = field(default_factory=dict)
    """Outcome by index, of those whose end the driver has heard of."""

    @property
    def open_indexes(self) -> list[int]:
        """Those whose end nobody has heard of."""
        if self.void:
            return []
        return [index for index in range(len(self.cells)) if index not in self.told]

    def job_of(self, index: int) -> str:
        """As Slurm's own tables name it."""
        return f"{self.job}_{index}" if len(self.cells) > 1 else self.job


def new_name(folder: Path) -> str:
    """A name for a job that no other job has: people see it in squeue."""
    title = _UNSAFE.sub("-", folder.name).strip("-")[:_LONGEST_TITLE].strip("-")
    return f"torchyard-{title or 'sweep'}-{secrets.token_hex(6)}"


class JobRecords:
    """The file, read once and written as a whole with each addition."""

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
                        hint="put the file back from a copy; without it, jobs that still run in "
                        "Slurm are not known",
                    ) from error
                self._lines.append(to_json_text(record))

    def open_arrays(self) -> list[JobArray]:
        """Those of which anything is still to be heard, oldest first."""
        return [array for array in self.arrays.values() if array.open_indexes]

    def intend(self, name: str, cells: Sequence[str]) -> JobArray:
        """Say what will be handed in, before it is."""
        self._add({"event": "intent", "name": name, "cells": list(cells), "at": _now()})
        return self.arrays[name]

    def submitted(self, name: str, job: str) -> None:
        """Slurm has taken it, under this number."""
        self._add({"event": "submitted", "name": name, "job": job, "at": _now()})

    def void(self, name: str, why: str) -> None:
        """It never reached Slurm. Should it do so after all, its jobs end without running."""
        self._add({"event": "void", "name": name, "why": why, "at": _now()})

    def told(self, ends: Sequence[tuple[str, int, str]]) -> None:
        """The driver has heard how these ended: name, index, outcome."""
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
            self.arrays[name].told[int(record["index"])] = str(record["outcome"])


def is_void(folder: Path, name: str) -> bool:
    """Whether a job of this name must not run; asked on the node, where the file is only read."""
    path = folder / JOBS_FILE
    if not path.exists():
        return False
    return any(
        record.get("event") == "void" and record.get("name") == name
        for _, record in read_records(path)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


SQUEUE_FORMAT: Final = ",".join(
    f"{field}:|"
    for field in ("Name", "ArrayJobID", "ArrayTaskID", "State", "exit_code", "NodeList", "Reason")
)
SACCT_FORMAT: Final = "JobName,JobID,State,ExitCode,NodeList"

_OUTCOMES: Final[dict[str, Outcome]] = {
    "COMPLETED": "finished",
    "CANCELLED": "cancelled",
    "FAILED": "died",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "OUT_OF_MEMORY": "memory-limit",
    "PREEMPTED": "pre-empted",
    "NODE_FAIL": "node-failed",
    "BOOT_FAIL": "node-failed",
    "REVOKED": "cancelled",
}
_WHY: Final = {
    "CANCELLED": "cancelled in Slurm",
    "TIMEOUT": "took longer than the time it asked Slurm for",
    "DEADLINE": "could not end before its deadline in Slurm",
    "OUT_OF_MEMORY": "used more memory than it asked Slurm for",
    "PREEMPTED": "another job took its place, and Slurm did not put it back into the queue",
    "NODE_FAIL": "its node failed, and Slurm did not put it back into the queue",
    "BOOT_FAIL": "its node could not be started",
    "REVOKED": "it ran on another cluster of the federation",
}
_RUNNING: Final = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
)
_WAITS: Final = {
    "Resources": "waits for free resources",
    "Priority": "others are before it in the queue",
    "JobArrayTaskLimit": "as many run as may at the same time",
    "BeginTime": "put back into the queue, begins again soon",
    "JobHeldUser": "held by the user: `scontrol release JOB`",
    "JobHeldAdmin": "held by an administrator",
    "launch failed requeued held": "could not be started and is held: `scontrol release JOB`",
}
_OF_NO_TASK: Final = "N/A"
_SIGNALLED: Final = 128
TIME_LIMIT_CODE: Final = 124
"""As the command itself and coreutils' timeout say it."""


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A job as Slurm tells of it."""

    name: str
    index: int
    job: str
    """Of the whole array."""
    state: str
    code: int = 0
    """As a shell says it: 128 and the number of the signal that ended it."""
    node: str = ""
    reason: str = ""
    label: str = ""
    """`12_3`, or `12` when it is not an array."""


def read_squeue(text: str) -> Iterator[Sighting]:
    """Jobs in the answer of squeue in SQUEUE_FORMAT, one per line; `--array` must be given."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < SQUEUE_FORMAT.count("|"):
            continue
        name, job, task, state, status, node, reason = (field.strip() for field in fields[:7])
        index = 0 if task == _OF_NO_TASK else _number(task)
        if index is None or not job.isdecimal():
            continue
        yield Sighting(
            name=name,
            index=index,
            job=job,
            state=state,
            code=_of_wait_status(_number(status) or 0),
            node=node,
            reason="" if reason in ("None", "(null)") else reason,
            label=job if task == _OF_NO_TASK else f"{job}_{task}",
        )


_SACCT_JOB: Final = re.compile(r"(\d+)(?:_(\d+))?")


def read_sacct(text: str) -> Iterator[Sighting]:
    """Jobs in the answer of `sacct --parsable2 --noheader --allocations` in SACCT_FORMAT."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < SACCT_FORMAT.count(",") + 1:
            continue
        name, job, state, exit_code, node = (field.strip() for field in fields[:5])
        match = _SACCT_JOB.fullmatch(job)  # `12_[3-7]` are elements that never began
        if match is None or not state:
            continue
        code, _, number = exit_code.partition(":")
        ended_by = _number(number) or 0
        yield Sighting(
            name=name,
            index=int(match[2] or 0),
            job=match[1],
            state=state.split()[0],  # `CANCELLED by 1000`
            code=_SIGNALLED + ended_by if ended_by else _number(code) or 0,
            node="" if node == "None assigned" else node,
            label=job,
        )


def has_ended(seen: Sighting) -> bool:
    """Whether nothing more will come of it."""
    return seen.state in _OUTCOMES


def may_come_back(seen: Sighting) -> bool:
    """Whether Slurm may yet put it back into the queue by itself, as it is asked to (--requeue)."""
    return seen.state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")


def as_job(cell: str, seen: Sighting) -> Job:
    """A job that has not ended."""
    place = f"{seen.node}, job {seen.label}" if seen.node else f"job {seen.label}"
    if seen.state in _RUNNING:
        text = "" if seen.state == "RUNNING" else f"Slurm says {seen.state}"
        return Job(cell=cell, state="running", place=place, text=text)
    reason = seen.reason.replace("_", " ")
    text = _WAITS.get(reason, reason)
    if seen.state != "PENDING":
        text = f"Slurm says {seen.state}" + (f" ({text})" if text else "")
    return Job(cell=cell, state="queued", place=place, text=text)


def as_ended(cell: str, seen: Sighting, *, log_end: str = "") -> Ended:
    """A job that has ended; `log_end` is what it printed last, where Slurm leaves some words."""
    outcome = _OUTCOMES[seen.state]
    why = _WHY.get(seen.state, "")
    if seen.state == "FAILED":
        if not seen.node:
            outcome, why = (
                "refused",
                f"Slurm would not start it: {seen.reason or 'no reason given'}",
            )
        elif _says_memory(log_end):
            outcome, why = "memory-limit", _WHY["OUT_OF_MEMORY"]
        else:
            outcome, why = code_outcome(seen.code)
    if why:
        where = f" on {seen.node}" if seen.node else ""
        why = f"{why} (job {seen.label}{where})"
    return Ended(cell=cell, outcome=outcome, why=why)


def code_outcome(code: int) -> tuple[Outcome, str]:
    """What an exit code of a cell's command says."""
    if code == 0:
        return "finished", ""
    if code == TIME_LIMIT_CODE:
        return "time-limit", "took longer than its limit"
    if code == _SIGNALLED + signal.SIGINT:
        return "interrupted", "interrupted"
    if _SIGNALLED < code < _SIGNALLED + signal.NSIG:
        try:
            name = signal.Signals(code - _SIGNALLED).name
        except ValueError:
            name = f"signal {code - _SIGNALLED}"
        if name in ("SIGTERM", "SIGHUP"):
            return "interrupted", f"its process was asked to end ({name})"
        said = "killed" if name == "SIGKILL" else "ended"
        return "died", f"its process was {said} ({name})"
    return "died", f"its process ended with exit code {code}"


def _says_memory(log_end: str) -> bool:
    """Where cgroups do not tell Slurm of it, the state is FAILED and only the job's output says why."""
    return "slurmstepd" in log_end and (
        "xceeded job memory limit" in log_end
        or "oom-kill event" in log_end
        or "oom_kill" in log_end
    )


def _of_wait_status(status: int) -> int:
    """From the status that squeue gives, as wait() does: 1792 is exit code 7, 9 is SIGKILL."""
    ended_by = status & 0x7F
    return _SIGNALLED + ended_by if ended_by else (status >> 8) & 0xFF


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None

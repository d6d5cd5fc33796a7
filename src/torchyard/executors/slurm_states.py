"""Slurm's words for jobs, read from its programs' answers and put into ours. No I/O.

Checked against Slurm 22.05; states that came later or are rare are in its manual (squeue(1), JOB STATE
CODES). A state that is not known here counts as not ended: better to wait than to measure twice.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torchyard.core.sweep import Outcome
from torchyard.executors.executor import Ended, Job

__all__ = [
    "SACCT_FORMAT",
    "SQUEUE_FORMAT",
    "TIME_LIMIT_CODE",
    "Sighting",
    "as_ended",
    "as_job",
    "code_outcome",
    "has_ended",
    "may_come_back",
    "read_sacct",
    "read_squeue",
]

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

"""Translation of Slurm job states. The output of squeue is that of Slurm 22.05."""

from __future__ import annotations

import pytest

from torchyard.sweep.executors.slurm.job_states import (
    SQUEUE_FORMAT,
    JobInfo,
    as_ended,
    as_job,
    code_outcome,
    has_ended,
    may_be_requeued,
    read_sacct,
    read_squeue,
)

SQUEUE = """\
torchyard-a-1|5|3|CANCELLED|15|one|None|
torchyard-a-1|8|0|PENDING|0||JobArrayTaskLimit|
torchyard-a-1|6|1|FAILED|1||BadConstraints|
torchyard-b-2|12|N/A|FAILED|1792|one|NonZeroExitCode|
torchyard-b-2|13|N/A|FAILED|9|one|JobLaunchFailure|
torchyard-b-2|15|N/A|TIMEOUT|15|one|TimeLimit|
torchyard-b-2|16|N/A|RUNNING|0|one|None|
"""


def seen(state: str, **fields: str | int) -> JobInfo:
    whole = {"name": "n", "index": 0, "job": "7", "label": "7_0", "state": state, **fields}
    return JobInfo(**whole)  # type: ignore[arg-type]


def test_squeue() -> None:
    states = list(read_squeue(SQUEUE))
    assert [(one.name[-1], one.job, one.index, one.label) for one in states] == [
        ("1", "5", 3, "5_3"),
        ("1", "8", 0, "8_0"),
        ("1", "6", 1, "6_1"),
        ("2", "12", 0, "12"),
        ("2", "13", 0, "13"),
        ("2", "15", 0, "15"),
        ("2", "16", 0, "16"),
    ]
    assert [one.code for one in states] == [143, 0, 129, 7, 137, 143, 0]
    assert states[1].reason == "JobArrayTaskLimit"
    assert states[0].reason == ""


@pytest.mark.parametrize(
    "line", ["", "slurm_load_jobs error", "n|x|0|RUNNING|0||None|", "n|1|[0-3]|PENDING|0||None|"]
)
def test_lines_that_are_no_jobs(line: str) -> None:
    assert list(read_squeue(line)) == []
    assert SQUEUE_FORMAT.count("|") == 7


def test_sacct() -> None:
    text = (
        "n|12_0|COMPLETED|0:0|node1\n"
        "n|12_1|FAILED|7:0|node1\n"
        "n|12_2|CANCELLED by 1000|0:15|node2\n"
        "n|12_[3-7]|PENDING|0:0|None assigned\n"
        "n|13|OUT_OF_MEMORY|0:125|node2\n"
        "n|12_0.batch|COMPLETED|0:0|node1\n"
        "rubbish\n"
    )
    states = list(read_sacct(text))
    assert [(one.label, one.index, one.state, one.code) for one in states] == [
        ("12_0", 0, "COMPLETED", 0),
        ("12_1", 1, "FAILED", 7),
        ("12_2", 2, "CANCELLED", 143),
        ("13", 0, "OUT_OF_MEMORY", 253),
    ]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("COMPLETED", "finished"),
        ("TIMEOUT", "time-limit"),
        ("DEADLINE", "time-limit"),
        ("OUT_OF_MEMORY", "memory-limit"),
        ("PREEMPTED", "pre-empted"),
        ("NODE_FAIL", "node-failed"),
        ("BOOT_FAIL", "node-failed"),
        ("CANCELLED", "cancelled"),
        ("REVOKED", "cancelled"),
    ],
)
def test_states_that_are_ends(state: str, outcome: str) -> None:
    one = seen(state, node="node1")
    assert has_ended(one)
    end = as_ended("c", one)
    assert end.outcome == outcome
    assert (end.why == "") == (outcome == "finished")
    if end.why:
        assert end.why.endswith("(job 7_0 on node1)")


@pytest.mark.parametrize(
    "state",
    ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"],
)
def test_states_that_are_not(state: str) -> None:
    assert not has_ended(seen(state))
    assert not may_be_requeued(seen(state))


def test_a_state_of_a_later_slurm_is_not_an_end() -> None:
    assert not has_ended(seen("HIBERNATED"))
    job = as_job("c", seen("HIBERNATED", reason="Cold_Weather"))
    assert (job.state, job.text) == ("queued", "Slurm state HIBERNATED (Cold Weather)")


def test_jobs_that_go_on() -> None:
    running = as_job("c", seen("RUNNING", node="node1"))
    assert (running.state, running.place, running.text) == ("running", "node1, job 7_0", "")
    closing = as_job("c", seen("COMPLETING", node="node1"))
    assert (closing.state, closing.text) == ("running", "Slurm state COMPLETING")
    waiting = as_job("c", seen("PENDING", reason="Resources"))
    assert (waiting.state, waiting.place) == ("queued", "job 7_0")
    assert waiting.text == "waiting for resources"
    assert as_job("c", seen("PENDING", reason="QOSMaxJobsPerUserLimit")).text == (
        "QOSMaxJobsPerUserLimit"
    )


def test_failed_without_a_node_was_refused() -> None:
    end = as_ended("c", seen("FAILED", reason="BadConstraints"))
    assert end.outcome == "refused"
    assert end.why == "Slurm refused to start it: BadConstraints (job 7_0)"


@pytest.mark.parametrize(
    "log_end",
    [
        "slurmstepd: error: Exceeded job memory limit",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.",
    ],
)
def test_failed_for_memory_where_only_the_output_says_so(log_end: str) -> None:
    one = seen("FAILED", node="node1", code=137)
    assert as_ended("c", one, log_end=log_end).outcome == "memory-limit"
    assert as_ended("c", one, log_end="a model printed oom_kill").outcome == "died"


@pytest.mark.parametrize(
    ("code", "outcome", "why"),
    [
        (0, "finished", ""),
        (1, "died", "its process exited with code 1"),
        (124, "time-limit", "exceeded its time limit"),
        (130, "interrupted", "interrupted"),
        (137, "died", "its process was killed (SIGKILL)"),
        (139, "died", "its process crashed (SIGSEGV)"),
        (143, "interrupted", "its process received SIGTERM"),
        (160, "died", "its process crashed (signal 32)"),
        (255, "died", "its process exited with code 255"),
    ],
)
def test_exit_codes(code: int, outcome: str, why: str) -> None:
    assert code_outcome(code) == (outcome, why)

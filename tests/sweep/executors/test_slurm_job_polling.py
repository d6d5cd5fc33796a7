"""States of jobs with incomplete information, with fake Slurm programs.

Accounts need a database, which the Slurm of the other tests does not have.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchyard.errors import StepFailed
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.executors.slurm.job_polling import MAX_OUTAGE_S, SlurmWatch
from torchyard.sweep.executors.slurm.job_states import JobArray, JobRecords
from torchyard.sweep.executors.slurm.node_job import end_path
from torchyard.sweep.executors.slurm.submission import SlurmExecutor

NAME = "torchyard-x-1"


class Programs:
    """Programs at the front of the PATH; each answers with a text and an exit code, and counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for name in ("squeue", "sacct", "scancel", "scontrol", "sbatch"):
            self.answer(name)

    def answer(self, name: str, text: str = "", *, code: int = 0, error: str = "") -> None:
        (self._folder / f"{name}.out").write_text(text)
        (self._folder / f"{name}.err").write_text(error)
        path = self._folder / name
        path.write_text(
            '#!/bin/sh\necho "$@" >>"$0.asked"\ncat "$0.out"\ncat "$0.err" >&2\n' + f"exit {code}\n"
        )
        path.chmod(0o755)

    def asked(self, name: str) -> list[str]:
        path = self._folder / f"{name}.asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    return Programs(tmp_path / "programs")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """With four cells handed in as array 12."""
    folder = tmp_path / "sweep"
    (folder / "slurm").mkdir(parents=True)
    records = JobRecords(folder)
    records.intend(NAME, ["a", "b", "c", "d"])
    records.submitted(NAME, "12")
    return folder


def executor(folder: Path, *, settle_s: float = 0.0, lost_after_s: float = 0.0) -> SlurmExecutor:
    pytest.importorskip("submitit")
    return SlurmExecutor(
        folder,
        lambda cell: [cell],
        lambda cell: folder / cell,
        poll_interval_s=0.0,
        settle_s=settle_s,
        lost_after_s=lost_after_s,
    )


def states(found: tuple[list[Job], list[Ended]]) -> dict[str, str]:
    jobs, ended = found
    return {one.cell: one.state for one in jobs} | {one.cell: one.outcome for one in ended}


def squeue(*states: str) -> str:
    return "".join(
        f"{NAME}|12|{index}|{state}|0|node1|None|\n" for index, state in enumerate(states) if state
    )


def test_accounting_then_the_record_of_the_job_then_unknown(
    programs: Programs, sweep: Path
) -> None:
    programs.answer("squeue", squeue("RUNNING"))
    programs.answer(
        "sacct", "n|12_0|RUNNING|0:0|node1\nn|12_1|TIMEOUT|0:0|node1\nn|9|FAILED|1:0|x\n"
    )
    end_path(sweep, NAME, 2).write_text('{"code": 0, "job": "12_2", "place": "node1"}')
    polled = executor(sweep).poll()
    assert states(polled) == {
        "a": "running",
        "b": "time-limit",
        "c": "finished",
        "d": "interrupted",
    }
    assert "--jobs=12" in programs.asked("sacct")[0]


def test_jobs_still_active_in_accounting_are_awaited(programs: Programs, sweep: Path) -> None:
    programs.answer("squeue", squeue("RUNNING", "RUNNING", "RUNNING"))
    programs.answer("sacct", "n|12_3|RUNNING|0:0|node1\n")
    one = executor(sweep, lost_after_s=60.0)
    assert states(one.poll())["d"] == "queued"
    assert states(one.poll())["d"] == "queued"


def test_where_no_accounts_are_kept_they_are_asked_for_once(
    programs: Programs, sweep: Path
) -> None:
    programs.answer("sacct", code=1, error="Slurm accounting storage is disabled")
    one = executor(sweep, lost_after_s=60.0)
    for _ in range(3):
        assert set(states(one.poll()).values()) == {"queued"}
    assert len(programs.asked("sacct")) == 1
    assert len(programs.asked("squeue")) == 3


def test_an_unavailable_database_is_queried_again(programs: Programs, sweep: Path) -> None:
    programs.answer("sacct", code=1, error="sacct: error: Problem talking to the database")
    one = executor(sweep, lost_after_s=60.0)
    one.poll()
    one.poll()
    assert len(programs.asked("sacct")) == 2


def test_a_lost_node_may_return_its_job(programs: Programs, sweep: Path) -> None:
    programs.answer("squeue", squeue("NODE_FAIL", "PREEMPTED", "RUNNING", "RUNNING"))
    one = executor(sweep, settle_s=60.0)
    jobs, ended = one.poll()
    assert ended == []
    assert [job.text for job in jobs] == ["Slurm state NODE_FAIL", "Slurm state PREEMPTED", "", ""]
    programs.answer("squeue", squeue("RUNNING", "PENDING", "RUNNING", "RUNNING"))
    assert states(one.poll()) == {"a": "running", "b": "queued", "c": "running", "d": "running"}


def test_a_lost_node_may_not_return_its_job(programs: Programs, sweep: Path) -> None:
    programs.answer("squeue", squeue("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"))
    assert states(executor(sweep).poll()) == {
        "a": "node-failed",
        "b": "pre-empted",
        "c": "node-failed",
        "d": "memory-limit",
    }


def test_an_observed_end_is_kept_after_slurm_removes_the_job(
    programs: Programs, sweep: Path
) -> None:
    programs.answer("squeue", squeue("NODE_FAIL", "RUNNING", "RUNNING", "RUNNING"))
    one = executor(sweep, settle_s=0.2, lost_after_s=60.0)
    assert states(one.poll())["a"] == "queued"
    programs.answer("squeue", squeue("", "RUNNING", "RUNNING", "RUNNING"))
    while states(found := one.poll())["a"] == "queued":
        pass
    assert states(found)["a"] == "node-failed"


def test_an_unavailable_controller_is_retried(programs: Programs, tmp_path: Path) -> None:
    now_s = 0.0
    watch = SlurmWatch(tmp_path, every_s=5.0, clock=lambda: now_s)
    arrays = [JobArray(name=NAME, cells=("a",), job="12")]
    programs.answer("squeue", squeue("RUNNING"))
    watch.poll(arrays)
    programs.answer("squeue", code=1, error="Unable to contact slurm controller")
    asked_at = []
    while now_s + 5.0 < MAX_OUTAGE_S:
        now_s += 5.0
        before = len(programs.asked("squeue"))
        assert watch.poll(arrays)[(NAME, 0)] is not None
        if len(programs.asked("squeue")) > before:
            asked_at.append(now_s)
    assert "Unable to contact" in watch.last_error
    assert asked_at[:6] == [5.0, 15.0, 35.0, 75.0, 135.0, 195.0], "less and less often"
    now_s = MAX_OUTAGE_S + 100.0
    with pytest.raises(
        StepFailed, match="squeue failed with exit code 1: Unable to contact slurm controller"
    ):
        watch.poll(arrays)
    programs.answer("squeue", squeue("COMPLETED"))
    now_s += 100.0
    watch.poll(arrays)
    assert watch.last_error == ""


def test_a_controller_that_never_answered(programs: Programs, sweep: Path) -> None:
    programs.answer("squeue", code=1, error="Unable to contact slurm controller")
    with pytest.raises(StepFailed, match="Unable to contact"):
        executor(sweep).poll()

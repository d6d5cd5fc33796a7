"""The Slurm executor with a real Slurm: jobs run, end and are cancelled."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweep.executors.slurm_cluster import (
    CPUS,
    NODE,
    Cluster,
    SweepOnSlurm,
    open_cluster,
    until,
    until_over,
    until_running,
    wait_for,
)
from torchyard.errors import UsageError
from torchyard.sweep.executors.slurm.submission import SlurmExecutor

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as one:
        yield one


@pytest.fixture
def sweep(cluster: Cluster, tmp_path: Path) -> SweepOnSlurm:
    # A space and a letter outside ASCII: the folder's name is in the head of the batch script.
    return SweepOnSlurm(tmp_path / "über sweep", {"partition": "low"})


@pytest.fixture(scope="module", autouse=True)
def overdue(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SweepOnSlurm, SlurmExecutor]:
    """A job over its time. Slurm looks for these every 30 s: other tests run meanwhile."""
    sweep = SweepOnSlurm(tmp_path_factory.mktemp("slurm") / "overdue", {"time": "10min"})
    executor = sweep.executor()
    executor.submit(["waits"])
    until_running(executor, sweep, "waits")
    number = executor.poll()[0][0].place.rpartition(" ")[2]
    assert "TimeLimit=00:10:00" in cluster.ask("scontrol", "show", "job", number)
    cluster.ask("scontrol", "update", f"jobid={number}", "EndTime=now+1")
    return sweep, executor


def test_an_array_runs_and_ends(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    sweep.options["at-most"] = 3
    executor = sweep.executor()
    executor.submit(["quick-1", "fails-1", "waits-1", "quick-2"])
    jobs, _ = executor.poll()
    assert [job.cell for job in jobs] == ["quick-1", "fails-1", "waits-1", "quick-2"]
    assert len(set(cluster.jobs(sweep))) == 1, "one array holds all of them"
    jobs, ends = until(executor, lambda _, ended: len(ended) == 3)
    assert [(job.cell, job.state) for job in jobs] == [("waits-1", "running")]
    assert jobs[0].place.startswith(f"{NODE}, job ")
    sweep.go()
    ends |= until_over(executor)
    assert {cell: one.outcome for cell, one in ends.items()} == {
        "quick-1": "finished",
        "quick-2": "finished",
        "waits-1": "finished",
        "fails-1": "died",
    }
    assert ends["quick-1"].why == ""
    assert ends["fails-1"].why.startswith("its process exited with code 7 (job ")
    assert (sweep.folder / "logs" / "quick-2.log").read_text() == "quick-2 begins\n"
    assert executor.detach() == "no jobs remain in Slurm"


def test_one_cell_is_a_job_of_its_own(sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["quick"])
    assert until_over(executor)["quick"].outcome == "finished"
    executor.submit(["quick"])
    assert until_over(executor)["quick"].outcome == "finished", "a cell can be handed in again"
    assert sweep.begun() == ["quick", "quick"]


def test_more_cells_than_an_array_may_have(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    assert "MaxArraySize            = 5" in cluster.ask("scontrol", "show", "config")
    cells = [f"quick-{number}" for number in range(7)]
    executor = sweep.executor()
    executor.submit(cells)
    assert len(set(cluster.jobs(sweep))) == 2
    assert until_over(executor).keys() == set(cells)
    assert sorted(sweep.begun()) == cells


def test_from_inside_a_job(sweep: SweepOnSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99999")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")
    monkeypatch.setenv("SQUEUE_STATES", "SUSPENDED")
    executor = sweep.executor()
    executor.submit(["quick"])
    assert os.environ["SLURM_JOB_ID"] == "99999"
    assert until_over(executor)["quick"].outcome == "finished"
    assert (sweep.folder / "logs" / "quick.log").read_text() == "quick begins\n"


def test_a_killed_job(sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["waits-1", "waits-2"])
    until_running(executor, sweep, "waits-1", "waits-2")
    pids = {line.split()[0]: line.split()[1:] for line in _begun_lines(sweep)}
    os.kill(int(pids["waits-1"][0]), signal.SIGKILL)  # the command
    os.kill(_parent(int(pids["waits-2"][1])), signal.SIGKILL)  # the batch script
    ends = until_over(executor)
    assert {one.outcome for one in ends.values()} == {"died"}
    assert ends["waits-1"].why.startswith("its process was killed (SIGKILL) (job ")
    assert ends["waits-2"].why.startswith("its process was killed (SIGKILL) (job ")
    assert ends["waits-2"].why.endswith(f" on {NODE})")


def test_cancelled_by_somebody_else(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["waits-1", "waits-2"])
    until_running(executor, sweep, "waits-1", "waits-2")
    number = executor.poll()[0][1].place.rpartition(" ")[2]
    cluster.ask("scancel", number)
    jobs, ends = until(executor, lambda _, ended: bool(ended))
    assert [job.cell for job in jobs] == ["waits-1"]
    assert ends["waits-2"].outcome == "cancelled"
    assert ends["waits-2"].why == f"cancelled in Slurm (job {number} on {NODE})"
    sweep.go()
    assert until_over(executor)["waits-1"].outcome == "finished"


def test_cancel_waits_until_all_are_gone(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    sweep.options["at-most"] = 1
    executor = sweep.executor()
    executor.submit(["waits-1", "waits-2", "waits-3"])
    until_running(executor, sweep, "waits-1")
    pid = int(_begun_lines(sweep)[0].split()[1])
    executor.cancel()
    assert cluster.jobs(sweep) == []
    assert not Path(f"/proc/{pid}").exists()
    ends = until_over(executor)
    assert {one.outcome for one in ends.values()} == {"cancelled"}
    assert len(ends) == 3
    executor.cancel()  # nothing is left to cancel


def test_over_the_limit_of_a_cell(sweep: SweepOnSlurm) -> None:
    sweep.limit_s = 1.0
    executor = sweep.executor()
    executor.submit(["waits", "quick"])
    ends = until_over(executor)
    assert ends["waits"].outcome == "time-limit"
    assert ends["quick"].outcome == "finished"


def test_too_much_memory(sweep: SweepOnSlurm) -> None:
    sweep.options["memory"] = "64M"
    executor = sweep.executor()
    executor.submit(["eats"])
    end = until_over(executor)["eats"]
    assert end.outcome == "memory-limit"
    assert end.why.startswith("exceeded its Slurm memory limit (job ")


@pytest.mark.parametrize(
    ("option", "value", "named", "words"),
    [
        ("partition", "nowhere", "partition", "Invalid partition name specified"),
        ("gpus", 2, "gpus", "Invalid generic resource (gres) specification"),
        ("memory", "900G", "memory", "Memory specification can not be satisfied"),
        ("slurm-constraint", "fast", "slurm-constraint", "Invalid feature specification"),
        ("slurm-not-there", "1", "slurm-not-there", "unrecognized option '--not-there"),
    ],
)
def test_a_refusal_names_the_option(
    cluster: Cluster, sweep: SweepOnSlurm, option: str, value: str | int, named: str, words: str
) -> None:
    sweep.options[option] = value
    executor = sweep.executor()
    with pytest.raises(UsageError) as caught:
        executor.submit(["quick"])
    assert caught.value.what == f"Slurm rejected the jobs because of {named}"
    assert words in caught.value.why
    assert caught.value.hint
    assert executor.poll() == ([], [])
    assert sweep.executor().poll() == ([], []), "the next driver does not look for them either"
    assert cluster.jobs(sweep) == []


def test_what_is_asked_for_reaches_slurm(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    sweep.options |= {"cpus": 2, "memory": "100M", "time": "1:30", "slurm-comment": "a [b|c] & d"}
    executor = sweep.executor()
    executor.submit(["waits"])
    number = executor.poll()[0][0].place.rpartition(" ")[2]
    job_text = cluster.ask("scontrol", "show", "job", number)
    for words in ("CPUs/Task=2", "MinMemoryNode=100M", "TimeLimit=00:02:00", "Partition=low"):
        assert words in job_text
    assert "Comment=a [b|c] & d" in job_text
    assert "Requeue=1" in job_text
    executor.cancel()


def test_over_its_time(overdue: tuple[SweepOnSlurm, SlurmExecutor]) -> None:
    end = until_over(overdue[1])["waits"]
    assert end.outcome == "time-limit"
    assert end.why.startswith("exceeded its Slurm time limit (job ")
    (output,) = (overdue[0].folder / "slurm").glob("*_log.out")
    limit_s = re.search(r"^time limit of the command: (\d+) s$", output.read_text(), re.MULTILINE)
    assert limit_s is not None
    assert 580 <= int(limit_s[1]) <= 590, "a little less than what the job asked for"


# Those that take the whole node come last.


def test_a_node_set_down_requeues_jobs(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["waits"])
    until_running(executor, sweep, "waits")
    cluster.ask("scontrol", "update", f"nodename={NODE}", "state=down", "reason=test")
    _, ends = until(executor, lambda jobs, _: bool(jobs) and jobs[0].state == "queued")
    assert not ends, "it has not ended: Slurm starts it again"
    cluster.ask("scontrol", "update", f"nodename={NODE}", "state=resume")
    wait_for(lambda: sweep.begun() == ["waits", "waits"], "the second start")
    sweep.go()
    assert until_over(executor)["waits"].outcome == "finished"


def test_preemption_by_another_job(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    sweep.options["exclusive"] = True
    executor = sweep.executor()
    executor.submit(["waits"])
    until_running(executor, sweep, "waits")
    cluster.ask(
        *("sbatch", "--partition=high", f"--ntasks={CPUS}", "--time=5", "--output=/dev/null"),
        "--wrap=sleep 1",
    )
    _, ends = until(executor, lambda jobs, _: bool(jobs) and jobs[0].state == "queued")
    assert not ends
    wait_for(lambda: len(sweep.begun()) == 2, "the second start")
    sweep.go()
    assert until_over(executor)["waits"].outcome == "finished"


def _begun_lines(sweep: SweepOnSlurm) -> list[str]:
    return (sweep.folder / "begun").read_text().splitlines()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

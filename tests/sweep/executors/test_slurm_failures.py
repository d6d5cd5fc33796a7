"""The Slurm executor with a real Slurm, after loss of the driver or the controller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweep.executors.slurm_cluster import (
    Cluster,
    SweepOnSlurm,
    open_cluster,
    until,
    until_over,
    until_running,
    wait_for,
)
from torchyard.errors import StepFailed

pytestmark = pytest.mark.slurm

DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.sweep.executors.slurm_cluster import SweepOnSlurm
executor = SweepOnSlurm(Path(sys.argv[2])).executor()
executor.submit(sys.argv[3:])
print("submitted", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as one:
        yield one


@pytest.fixture
def sweep(cluster: Cluster, tmp_path: Path) -> SweepOnSlurm:
    return SweepOnSlurm(tmp_path / "sweep")


def start_driver(
    sweep: SweepOnSlurm, *cells: str, programs: Path | None = None
) -> subprocess.Popen[str]:
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(Path(__file__).parents[3]), str(sweep.folder), *cells],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PATH": path},
    )


def wrap_program(folder: Path, name: str, text: str) -> Path:
    """A folder for the front of the PATH, in which a program of Slurm does more than it should."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\nreal={shutil.which(name)}\n{text}\n")
    path.chmod(0o755)
    return folder


def events(sweep: SweepOnSlurm) -> list[str]:
    lines = (sweep.folder / "jobs.jsonl").read_text().splitlines()
    return [str(json.loads(line)["event"]) for line in lines]


def test_a_new_driver_finds_the_jobs_of_a_killed_one(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    with start_driver(sweep, "waits-1", "waits-2", "quick") as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "submitted\n"
        driver.kill()
    wait_for(lambda: sweep.done("quick"), "the cell to end while nobody drives")
    executor = sweep.executor()
    jobs, ends = until(executor, lambda _, ended: bool(ended))
    assert {job.cell for job in jobs} == {"waits-1", "waits-2"}
    assert ends["quick"].outcome == "finished"
    executor.submit(["waits-1", "waits-2"])
    assert len(cluster.jobs(sweep)) == 2, "what has a job is not handed in again"
    messages = executor.detach()
    assert messages.startswith("2 jobs continue in Slurm (`squeue --name=torchyard-sweep-")
    assert messages.endswith("`) and will be found by --resume")

    third = sweep.executor()
    sweep.go()
    assert {cell: one.outcome for cell, one in until_over(third).items()} == {
        "waits-1": "finished",
        "waits-2": "finished",
    }
    assert third.poll() == ([], [])
    assert sweep.executor().poll() == ([], []), "what a driver has dealt with is not told again"
    assert sorted(sweep.begun()) == ["quick", "waits-1", "waits-2"]


def test_an_end_that_the_driver_may_not_have_written_is_reported_again(sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["quick"])
    assert until(executor, lambda _, ended: bool(ended))[1]["quick"].outcome == "finished"
    # The driver is killed here, before it wrote what it was told.
    assert until_over(sweep.executor())["quick"].outcome == "finished"


def test_killed_between_sbatch_and_writing_the_number(
    cluster: Cluster, sweep: SweepOnSlurm, tmp_path: Path
) -> None:
    programs = wrap_program(tmp_path / "programs", "sbatch", '"$real" "$@"; kill -9 $PPID')
    with start_driver(sweep, "waits-1", "waits-2", programs=programs) as driver:
        assert driver.wait(30) == -signal.SIGKILL
    assert events(sweep) == ["intent"]
    executor = sweep.executor()
    executor.submit(["waits-1", "waits-2"])
    assert len(cluster.jobs(sweep)) == 2, "not handed in a second time"
    assert events(sweep) == ["intent", "submitted"]
    until_running(executor, sweep, "waits-1", "waits-2")  # with what the first driver never laid
    sweep.go()
    assert {one.outcome for one in until_over(executor).values()} == {"finished"}
    assert sorted(sweep.begun()) == ["waits-1", "waits-2"]


def test_sbatch_gets_through_after_the_cells_were_given_to_another_job(
    cluster: Cluster, sweep: SweepOnSlurm, tmp_path: Path
) -> None:
    late = 'kill -9 $PPID; while [ ! -e "$0.gate" ]; do sleep 0.1; done; "$real" "$@" >/dev/null'
    programs = wrap_program(tmp_path / "programs", "sbatch", late)
    with start_driver(sweep, "quick-1", "quick-2", programs=programs) as driver:
        assert driver.wait(30) == -signal.SIGKILL
        executor = sweep.executor()
        assert executor.poll() == ([], [])
        assert events(sweep) == ["intent", "void"]
        executor.submit(["quick-1", "quick-2"])
        assert {one.outcome for one in until_over(executor).values()} == {"finished"}
        (programs / "sbatch.gate").touch()
        wait_for(
            lambda: cluster.ask("squeue", "-h", "-r", "-t", "CD", "-o", "%j").count("-sweep-") >= 4,
            "the late array to end",
        )
    assert sorted(sweep.begun()) == ["quick-1", "quick-2"], "each ran once"
    assert executor.poll() == ([], [])


def test_one_question_for_all_jobs(
    sweep: SweepOnSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = wrap_program(tmp_path / "programs", "squeue", 'echo asked >>"$0.log"; "$real" "$@"')
    executor = sweep.executor()
    for cell in ("waits-1", "waits-2", "waits-3"):
        executor.submit([cell])
    executor._watch._interval_s = 5.0
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for _ in range(20):
        assert len(executor.poll()[0]) == 3
    assert (programs / "squeue.log").read_text() == "asked\n"
    executor.cancel()


def test_while_the_controller_is_unavailable(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["waits"])
    until_running(executor, sweep, "waits")
    cluster.stop("slurmctld")
    jobs, _ = until(executor, lambda jobs, _: "is not reachable" in jobs[0].text)
    assert [(job.cell, job.state) for job in jobs] == [("waits", "running")]
    with pytest.raises(
        StepFailed, match=r"squeue failed with exit code 1: .*Unable to contact slurm"
    ):
        sweep.executor().poll()
    with pytest.raises(StepFailed, match="Unable to contact slurm"):
        executor.submit(["quick"])
    cluster.start_controller()
    sweep.go()
    assert until_over(executor)["waits"].outcome == "finished"
    assert not sweep.done("quick")


def test_jobs_that_slurm_has_forgotten(cluster: Cluster, sweep: SweepOnSlurm) -> None:
    executor = sweep.executor()
    executor.submit(["quick", "fails", "waits-1", "waits-2"])
    until_running(executor, sweep, "waits-1", "waits-2")
    wait_for(lambda: len(list((sweep.folder / "slurm").glob("*.end.json"))) == 2, "two ends")
    cluster.stop("slurmctld")
    for line in (sweep.folder / "begun").read_text().splitlines():
        cell, _, parent = line.split()
        if cell == "waits-1":
            os.kill(int(parent), signal.SIGKILL)  # the process that would say how it ended
    cluster.start_controller(forget=True)
    ends = until_over(sweep.executor())
    assert ends["quick"].outcome == "finished"
    assert ends["fails"].outcome == "died"
    assert ends["fails"].why.startswith("its process exited with code 7 (job ")
    assert ends["waits-1"].outcome == "interrupted"
    assert "is no longer in Slurm" in ends["waits-1"].why
    # The new controller kills jobs that it does not know; what is left behind of this one may still
    # say that its command was killed, or may not.
    assert ends["waits-2"].outcome in ("interrupted", "died")
    assert not sweep.done("waits-2")

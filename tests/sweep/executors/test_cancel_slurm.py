"""Detaching from and cancelling a sweep on a real Slurm, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import program
from tests.sweep.executors.slurm_cluster import Cluster, open_cluster, wait_for
from torchyard.sweep.folder import SweepFolder

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WHAT = ("--suites", "kernels", "--only", "kernels/matmul", "--only", "kernels/softmax")
WHERE = ("--executor", "slurm", "--partition", "low", "--job-memory", "500M", "--at-most", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as one:
        yield one


def jobs_in(cluster: Cluster) -> list[str]:
    return cluster.ask("squeue", "--noheader", "--array", "--format=%i").split()


@pytest.mark.timeout(300)
def test_jobs_outlive_their_driver_until_they_are_cancelled(
    cluster: Cluster, tmp_path: Path
) -> None:
    # An interpreter that never says a word: the first cell waits for it in its job.
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    folder, home = tmp_path / "sweep", str(tmp_path / "home")
    arguments = ["sweep", *WHAT, *WHERE, "--target", f"silent={silent}", "--run-dir", str(folder)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "torchyard", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORCHYARD_HOME": home},
    )
    try:
        wait_for(
            lambda: driver.poll() is not None or list(folder.glob("cells/*/run-1/run.json")),
            "the first cell to begin",
            limit_s=120,
        )
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert driver.returncode == 130, err
    assert "in Slurm" in err
    assert f"resume with: torchyard sweep --resume {folder}" in err
    assert len(jobs_in(cluster)) == 2

    completed = program("sweep", "cancel", str(folder), "--json", TORCHYARD_HOME=home)
    assert completed.code == 0, completed.err
    record = json.loads(completed.out)
    assert (record["driver"], record["jobs"]) == (None, 2)
    assert jobs_in(cluster) == []
    states = [status.state for status in SweepFolder.open(folder).statuses()]
    assert "done" not in states
    assert "failed" not in states

    assert program("sweep", "cancel", str(folder), TORCHYARD_HOME=home).code == 3

    # With the fix, the sweep resumes: cancelling does not count as failed attempts of its cells.
    silent.write_text("#!/bin/sh\nexit 3\n")
    completed = program("sweep", "--resume", str(folder), "--json", TORCHYARD_HOME=home)
    assert completed.code == 4, completed.err
    cells = json.loads(completed.out)["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done"]
    assert cells[0]["attempts"][0]["outcome"] in ("cancelled", "interrupted")

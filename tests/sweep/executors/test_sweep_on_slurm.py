"""Sweeps on a real Slurm, from the command line: a killed driver, and batches limited by the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sweep.executors.slurm_cluster import Cluster, open_cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.torch]

WHAT = ("--suites", "kernels", "--only", "kernels/reduce-*", "--only", "kernels/softmax")
HOW = ("--null", "--time", "2s", "--launches", "2", "--threads", "1")
WHERE = (
    *("--executor", "slurm", "--partition", "low", "--cpus", "2", "--job-memory", "3G"),
    *("--job-time", "20min", "--at-most", "1"),
)

HUNGRY = """
import torch

def hold(samples):
    return torch.ones(samples.shape[0], 2**26).sum(1)  # a quarter of a GiB for each sample

def make(batch_size=1):
    return hold, torch.ones(batch_size, 8)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as one:
        yield one


def torchyard(*words: str) -> list[str]:
    return [sys.executable, "-m", "torchyard", *words]


def shown(folder: Path, home: dict[str, str]) -> dict[str, Any]:
    completed = subprocess.run(
        torchyard("sweep", "show", str(folder), "--json"),
        capture_output=True,
        text=True,
        check=False,
        env=home,
    )
    assert completed.returncode == 0, completed.stderr
    record: dict[str, Any] = json.loads(completed.stdout)
    return record


@pytest.mark.timeout(600)
def test_a_sweep_whose_driver_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    home = {**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            torchyard("sweep", *WHAT, *HOW, *WHERE, "--run-dir", str(folder)),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=home,
        )
    jobs = folder / "jobs.jsonl"
    wait_for(
        lambda: driver.poll() is not None or (jobs.exists() and "told" in jobs.read_text()),
        "the first cell to end",
        limit_s=200,
    )
    assert driver.poll() is None, (tmp_path / "driver.log").read_text()
    driver.send_signal(signal.SIGKILL)
    driver.wait()

    first = {cell["cell"]["id"]: cell for cell in shown(folder, home)["cells"]}
    assert len(first) >= 3
    assert any(cell["state"] == "done" for cell in first.values())
    assert not all(cell["state"] == "done" for cell in first.values())
    completed = subprocess.run(
        torchyard("sweep", "--resume", str(folder), "--json"),
        capture_output=True,
        text=True,
        check=False,
        env=home,
        timeout=400,
    )
    assert completed.returncode in (0, 6), completed.stderr  # 6: the machine was busy meanwhile
    record = json.loads(completed.stdout)
    assert [cell["state"] for cell in record["cells"]] == ["done"] * len(first)
    assert [len(cell["attempts"]) for cell in record["cells"]] == [1] * len(first), "none ran twice"
    assert all(", job " in cell["attempts"][0]["place"] for cell in record["cells"])
    assert len(record["comparisons"]) == len(first)
    submissions = [json.loads(line) for line in jobs.read_text().splitlines()]
    assert sum(line["event"] == "submitted" for line in submissions) == 1


@pytest.mark.timeout(600)
def test_the_largest_batch_is_that_of_the_job(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm ends a job that takes more than it asked for; the search stays below that."""
    (tmp_path / "hungry.py").write_text(HUNGRY)
    home = {**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")}
    what = ("--workload", "hungry.py", "--batch-size", "largest", "--backends", "aot_eager")
    completed = subprocess.run(
        torchyard("sweep", *what, *HOW[1:], *WHERE, "--run-dir", "sweep", "--json"),
        capture_output=True,
        text=True,
        check=False,
        env=home,
        cwd=tmp_path,
        timeout=500,
    )
    assert completed.returncode in (0, 6), completed.stderr
    record = json.loads(completed.stdout)
    (cell,) = record["cells"]
    assert (cell["state"], len(cell["attempts"])) == ("done", 1), cell
    (row,) = record["comparisons"]
    # 80 % of 3 GiB, less what torch itself and the checks hold.
    assert 2 <= row["workload"]["batch_size"] <= 8

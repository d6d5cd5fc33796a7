"""`torchyard bisect --executor slurm` with a real Slurm of one node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bisect.git_project import make_project, printing
from tests.sweep.executors.slurm_cluster import Cluster, open_cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(600)]
CULPRIT = 3
WHERE = ("--executor", "slurm", "--slurm", "partition=low", "--slurm", "memory=2G")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as one:
        yield one


def command(folder: Path, good: str, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torchyard", "bisect", "--repo", str(folder), "--good", good),
        *("--command", "sh bench.sh", "--metric", "printed", "--json", *WHERE, *options),
    ]


def project(tmp_path: Path, line: str = "") -> tuple[Path, list[str]]:
    folder = tmp_path / "project"
    revisions = [
        {"bench.sh": line + printing(0.6 if number >= CULPRIT else 0.5)["bench.sh"]}
        for number in range(5)
    ]
    return folder, make_project(folder, revisions)


def test_the_culprit_is_found_by_jobs(cluster: Cluster, tmp_path: Path) -> None:
    folder, commits = project(tmp_path, 'test -n "$SLURM_JOB_ID" || exit 9\n')
    state = tmp_path / "state"
    argv = command(folder, commits[0], "--folder", str(state))
    home = {**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")}
    driver = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=home)
    wait_for(
        lambda: driver.poll() is not None or len(list(state.glob("rounds/*[0-9].json"))) >= 2,
        "two rounds",
        limit_s=200,
    )
    assert driver.poll() is None
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=home, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "resumed after" in done.stderr
    document = json.loads(done.stdout)
    assert [one["commit"] for one in document["candidates"]] == [commits[CULPRIT]]
    assert cluster.ask("squeue", "--noheader").strip() == ""


def test_an_end_that_fails_in_its_job(cluster: Cluster, tmp_path: Path) -> None:
    folder, commits = project(tmp_path, "echo reason >&2; exit 3\n")
    home = {**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command(folder, commits[0]),
        capture_output=True,
        text=True,
        check=False,
        env=home,
        timeout=300,
    )
    assert done.returncode == 5, done.stderr
    assert "exited with code 3" in done.stdout + done.stderr

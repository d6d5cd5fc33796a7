"""Ranks on several nodes, on a real Slurm with two nodes: results, failures, and no process that is left."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench.rank_programs import NET
from tests.bench.tiny_bench import write_file
from tests.sweep.executors.slurm_cluster import Cluster, open_cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

MARK = "RANKS_ON_NODES"
"""A variable that every process of a job inherits, on every node."""
PLACES = """
    folder = os.path.dirname(__file__)

    def make_here():
        name = "rank-%d-on-%s" % (dist.get_rank(), os.environ["SLURMD_NODENAME"])
        open(os.path.join(folder, name), "w").write(os.environ.get("GLOO_SOCKET_IFNAME", ""))
        return make()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster(nodes=2) as cluster:
        yield cluster


@dataclass
class Job:
    """`torchyard bench` in an allocation of two nodes."""

    cluster: Cluster
    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    number: str = ""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def start(self, *arguments: str, nodes: int = 2) -> None:
        command = [sys.executable, "-m", "torchyard", "bench", *arguments]
        command += ["--run-dir", str(self.run), "--threads", "1"]
        script = self.folder / "job.sh"
        script.write_text('#!/bin/sh\nexec "$@"\n')
        completed = self.cluster.ask(
            *("sbatch", "--parsable", f"--nodes={nodes}", "--mem=3000", "--cpus-per-task=2"),
            *(f"--output={self.output}", f"--export=ALL,{MARK}={self.mark}", str(script), *command),
        )
        self.number = completed.strip()

    @property
    def output(self) -> Path:
        return self.folder / "job.out"

    @property
    def state(self) -> str:
        text = self.cluster.ask("scontrol", "show", "job", self.number)
        return text.partition("JobState=")[2].split()[0]

    def wait(self) -> str:
        """Return the state at the end, when no process is left on any node."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(lambda: self.state in ended, f"the end of {self.output}", limit_s=400)
        wait_for(lambda: not self.processes(), "the end of all processes")
        return self.state

    def processes(self, text: str = "", node: str = "") -> list[psutil.Process]:
        """The living processes of the job whose command contains the text, on one node or all."""
        processes = []
        for process in psutil.process_iter():
            try:
                variables, command = process.environ(), " ".join(process.cmdline())
                alive = process.status() != psutil.STATUS_ZOMBIE
            except (psutil.Error, OSError):
                continue
            if alive and variables.get(MARK) == self.mark and text in command:
                processes += [process] if node in ("", variables.get("SLURMD_NODENAME")) else []
        return processes

    def controller(self) -> psutil.Process:
        """The process of Torchyard, which a shell may have started."""
        (found,) = [
            one
            for one in self.processes("-m torchyard bench", "yard1")
            if one.cmdline()[0] == sys.executable
        ]
        return found

    def until_timed(self) -> None:
        samples = self.run / "samples.jsonl"

        def timed() -> bool:
            assert self.state in ("PENDING", "CONFIGURING", "RUNNING"), self.output.read_text()
            return samples.exists() and samples.read_bytes().count(b"\n") >= 4

        wait_for(timed, "timed blocks", limit_s=300)

    def rows(self) -> dict[str, dict[str, Any]]:
        command = [sys.executable, "-m", "torchyard", "report", str(self.run), "--json"]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert completed.returncode in (0, 1, 3, 6), completed.stderr + self.output.read_text()
        rows = json.loads(completed.stdout)["comparisons"]
        return {row["candidate"].rpartition(":")[2]: row for row in rows}


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    one = Job(cluster, tmp_path)
    yield one
    if one.number:
        subprocess.run(["scancel", one.number], check=False)
        wait_for(lambda: not one.processes(), "the end of all processes")


def test_ranks_run_on_both_nodes_and_failures_name_the_rank(job: Job) -> None:
    own = write_file(job.folder, "own.py", NET + PLACES)
    names = ("no_sync", "dies", "raises", "hangs")
    job.start(
        *(f"{own}:make_here", "--mode", "training", "--ranks", "2", "--nodes", "2"),
        *("--baseline", "ddp", "--candidate", "fsdp2", "--time", "4s", "--launches", "1"),
        *(part for name in names for part in ("--candidate", f"{own}:{name}")),
        *("--step-limit", "60s"),
    )
    assert job.wait() in ("COMPLETED", "FAILED")
    assert {path.name for path in job.folder.glob("rank-*")} == {
        "rank-0-on-yard1",
        "rank-1-on-yard2",
    }
    assert all(path.read_text() for path in job.folder.glob("rank-*")), "no interface was chosen"
    rows = job.rows()
    sharded = next(row for name, row in rows.items() if "fsdp2" in name)
    assert sharded["accuracy"]["status"] == "pass"
    assert sharded["workload"]["nodes"] == 2
    assert sharded["estimate"] is not None
    assert rows["no_sync"]["accuracy"]["status"] == "fail"
    for name, text in (
        ("dies", "rank 1: was killed by SIGKILL"),
        ("raises", "rank 1: ValueError: rank 1 says no"),
        ("hangs", "rank 1 is in"),
    ):
        assert rows[name]["verdict"] == "failed", rows[name]
        assert text in rows[name]["failure"]["message"], rows[name]
    logs = "".join(path.read_text() for path in job.run.rglob("*-rank-1.log"))
    assert "rank 1 says goodbye" in logs
    assert "in hang" in logs  # the stacks of a process on the other node


@pytest.mark.parametrize("what", ["agent", "step"])
def test_a_lost_node_is_a_failed_row(job: Job, what: str) -> None:
    own = write_file(job.folder, "own.py", NET)
    job.start(
        *(f"{own}:make", "--mode", "training", "--ranks", "4", "--nodes", "2"),
        *("--baseline", "ddp", "--candidate", f"{own}:by_hand"),
        *("--time", "5m", "--precision-goal", "0%", "--launches", "1"),
    )
    job.until_timed()
    assert len(job.processes("boot.py", "yard2")) >= 2
    agents = job.processes("node_agent", "yard2")
    lost = agents if what == "agent" else [agent.parent() for agent in agents]
    for process in lost:
        assert process is not None
        assert ("slurmstepd" in process.name()) == (what == "step")
        process.kill()
    if what == "step":
        for process in job.processes("", "yard2"):
            process.kill()
    job.wait()
    (row,) = job.rows().values()
    assert row["verdict"] == "failed"
    message = row["failure"]["message"]
    assert "rank 2" in message or "rank 3" in message, message


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "scancel"])
def test_nothing_is_left_on_any_node(job: Job, how: str) -> None:
    own = write_file(job.folder, "own.py", NET)
    job.start(
        *(f"{own}:make", "--mode", "training", "--ranks", "2", "--nodes", "2"),
        *("--baseline", "ddp", "--candidate", f"{own}:by_hand"),
        *("--time", "5m", "--precision-goal", "0%"),
    )
    job.until_timed()
    assert job.processes("boot.py", "yard2")
    if how == "scancel":
        job.cluster.ask("scancel", job.number)
    else:
        job.controller().send_signal(getattr(signal, how))
    # Not by the end of the job, whose processes Slurm kills: it ends only after them.
    wait_for(lambda: not job.processes("", "yard2"), "the end of the processes of the second node")
    job.wait()


def test_a_worker_on_the_other_node_ends_while_the_job_goes_on(job: Job) -> None:
    """Slurm kills the processes of a job that ends, so the job outlives Torchyard here."""
    own = write_file(job.folder, "own.py", NET)
    command = [sys.executable, "-m", "torchyard", "bench", f"{own}:make", "--mode", "training"]
    command += ["--ranks", "2", "--nodes", "2", "--baseline", "ddp", "--candidate"]
    command += [
        f"{own}:by_hand",
        "--time",
        "5m",
        "--precision-goal",
        "0%",
        "--run-dir",
        str(job.run),
    ]
    script = job.folder / "job.sh"
    script.write_text('#!/bin/sh\n"$@"\nexec sleep 300\n')
    job.number = job.cluster.ask(
        *("sbatch", "--parsable", "--nodes=2", "--mem=3000", f"--output={job.output}"),
        *(f"--export=ALL,{MARK}={job.mark}", str(script), *command),
    ).strip()
    job.until_timed()
    # srun, and the process that would tell Slurm about its end, are killed, too.
    for process in (job.controller(), *job.processes("srun ", "yard1")):
        process.kill()
    wait_for(lambda: not job.processes("", "yard2"), "the end of the processes of the second node")
    assert job.state == "RUNNING"


@pytest.mark.parametrize(
    ("nodes", "text"), [(1, "the Slurm allocation has 1 nodes, and 2 are requested")]
)
def test_an_allocation_that_is_too_small(job: Job, nodes: int, text: str) -> None:
    own = write_file(job.folder, "own.py", NET)
    job.start(
        *(f"{own}:make", "--mode", "training", "--ranks", "2", "--nodes", "2"),
        *("--baseline", "ddp", "--candidate", f"{own}:by_hand", "--time", "4s"),
        nodes=nodes,
    )
    job.wait()
    assert text in " ".join(job.output.read_text().split())


def test_a_cell_of_a_sweep_spans_nodes(cluster: Cluster, tmp_path: Path) -> None:
    own = write_file(tmp_path, "own.py", NET + PLACES)
    study = tmp_path / "study.toml"
    study.write_text(
        f'baseline = "ddp"\ncandidates = ["{own}:by_hand"]\n[[workloads]]\nname = "{own}:make_here"\n'
        'mode = "training"\nranks = 2\nnodes = 2\n[budget]\ntime = "3s"\nmax-launches = 1\n'
    )
    command = [sys.executable, "-m", "torchyard", "sweep", str(study), "--executor", "slurm"]
    command += ["--cpus", "2", "--job-memory", "3000M", "--run-dir", str(tmp_path / "sweep")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert "passed" in completed.stdout + completed.stderr, completed.stdout + completed.stderr
    assert {path.name for path in tmp_path.glob("rank-*")} == {"rank-0-on-yard1", "rank-1-on-yard2"}
    assert cluster.folder.exists()

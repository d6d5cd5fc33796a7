"""A real Slurm for tests, of one node or several: Debian's munged, slurmctld and slurmd in a private folder.

`open_cluster` starts them on free ports with their own key, socket and state, and ends them again;
nothing of the machine's own Slurm, if it has one, is touched. Tests that use it carry
`pytest.mark.slurm`; where it cannot run they are skipped, and say why.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest

from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.executors.slurm.job_options import read_options
from torchyard.sweep.executors.slurm.submission import SlurmExecutor

NODE: Final = "yard1"
CPUS: Final = 8
_DAEMONS: Final = ("munged", "slurmctld", "slurmd")
_TOOLS: Final = ("sbatch", "squeue", "scancel", "scontrol")
_START_S: Final = 30.0

# No accounts are kept, as on a small cluster. What is asked for here is less than sites wait: jobs that
# are put back into the queue begin again as soon as their credential is over (cred_expire).
_SETTINGS: Final = """\
ClusterName=yard
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=200000,bf_interval=1
MaxArraySize=5
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
KillWait=2
MessageTimeout=2
MinJobAge=300
ReturnToService=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DefMemPerCPU=100
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=10
"""
_NODE: Final = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=8000"
)

_SCRIPT: Final = """\
# A cell for tests: $1 is its id, whose first letters say what it does; $2 is the sweep's folder.
echo "$1 begins${SLURM_CPUS_PER_TASK:+ with $SLURM_CPUS_PER_TASK}" && echo "$1 $$ $PPID" >> "$2/begun"
case "$1" in
    fails*) exit 7 ;;
    eats*) exec "$3" -c 'import time; data = bytearray(300 << 20); time.sleep(60)' ;;
    waits*) while [ ! -e "$2/go" ]; do sleep 0.2; done ;;
esac
echo done > "$2/$1.done"
"""


@dataclass
class Cluster:
    """The daemons, and Slurm's own programs to play the administrator with."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str, program: str = "") -> None:
        """Start a daemon in the foreground, as a child of the test."""
        program = program or name
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [shutil.which(program) or program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_controller(self, *, forget: bool = False) -> None:
        """`forget`: without the jobs that it knew."""
        self.start("slurmctld", "-D", "-f", str(self.settings), *(["-c"] if forget else []))
        self.wait_until_up()

    @property
    def settings(self) -> Path:
        return self.folder / "slurm.conf"

    def ask(self, *command: str) -> str:
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert completed.returncode == 0, f"{command}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def wait_until_up(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            completed = subprocess.run(
                ["sinfo", "--noheader", "--Format=StateLong:|"],
                capture_output=True,
                text=True,
                check=False,
            )
            if completed.stdout and all(
                line.strip("| \n") in ("idle", "mixed", "allocated")
                for line in completed.stdout.split("\n")
                if line
            ):
                return
            time.sleep(0.2)
        logs = "".join(
            f"\n{path.name}: {path.read_text(errors='replace')[-600:]}"
            for path in sorted(self.folder.glob("*.log"))
        )
        pytest.skip(f"Slurm did not come up within {_START_S:g} s here:{logs}")

    def jobs(self, sweep: SweepOnSlurm) -> list[str]:
        """Names of a sweep's jobs that are not over, one per element of an array."""
        names = self.ask("squeue", "--noheader", "--array", "--format=%j").split()
        return [name for name in names if f"-{sweep.title}-" in name]


@contextmanager
def open_cluster(nodes: int = 1) -> Iterator[Cluster]:
    """A cluster that SLURM_CONF names while it is open; skips the test where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm for tests is started as root")
    missing = [name for name in (*_DAEMONS, *_TOOLS) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (Debian: slurm-wlm and munge)")
    pytest.importorskip("submitit")
    # Not below pytest's folders: those are closed to others, which munged refuses, and too long
    # for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="torchyard-slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder=folder)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.settings)
    try:
        _write_settings(cluster, nodes)
        cluster.start("munged", "--foreground", "--force", *_munge_places(folder))
        wait_for((folder / "munge.socket").exists, "munged", limit_s=10)
        for number in range(nodes):
            name = f"yard{number + 1}"
            arguments = ("-D", "-N", name, "-f", str(cluster.settings))
            cluster.start(f"slurmd-{name}", *arguments, program="slurmd")
        cluster.start_controller()
        yield cluster
    finally:
        _end(cluster)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(cluster: Cluster, nodes: int) -> None:
    folder = cluster.folder
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller_port, *node_ports = _free_ports(1 + nodes)
    host = socket.gethostname().partition(".")[0]
    lines = []
    for number, port in enumerate(node_ports, 1):
        name = f"yard{number}"
        (folder / f"spool-{name}").mkdir()
        lines.append(_NODE.format(name=name, host=host, port=port, cpus=CPUS))
    text = _SETTINGS.format(
        host=host, folder=folder, controller_port=controller_port, nodes="\n".join(lines)
    )
    cluster.settings.write_text(text)


def _munge_places(folder: Path) -> list[str]:
    places = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
    return [f"--{option}={folder}/munge.{end}" for option, end in places.items()]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _end(cluster: Cluster) -> None:
    if "slurmctld" in cluster.running and any("slurmd" in name for name in cluster.running):
        subprocess.run(["scancel", f"--user={os.getuid()}"], capture_output=True, check=False)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            completed = subprocess.run(
                ["squeue", "-h"], capture_output=True, check=False, timeout=30
            )
            if completed.returncode != 0 or not completed.stdout.strip():
                break
            time.sleep(0.2)
    for name in reversed(list(cluster.running)):
        cluster.stop(name)
    _end_jobs(cluster)


def _end_jobs(cluster: Cluster) -> None:
    """What a job left behind whose head was killed, or that a controller has forgotten."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.environ().get("SLURM_CONF") == str(cluster.settings)
            if ours and process.pid != os.getpid():
                process.kill()


@dataclass
class SweepOnSlurm:
    """A folder like a sweep's, with cells that are small scripts, and executors of it."""

    folder: Path
    options: dict[str, str | int | bool] = field(default_factory=dict)
    limit_s: float | None = None

    def __post_init__(self) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        (self.folder / "cell.sh").write_text(_SCRIPT)

    def executor(self) -> SlurmExecutor:
        """A new one each time, as for a new driver."""
        return SlurmExecutor(
            self.folder,
            self.command,
            lambda cell: self.folder / "logs" / f"{cell}.log",
            options=read_options(tuple(self.options.items())),
            limit_s=self.limit_s,
            poll_interval_s=0.3,
            lost_after_s=1.0,
            settle_s=5.0,
        )

    def command(self, cell: str) -> Sequence[str]:
        python = shutil.which("python3") or "python3"
        return ["/bin/sh", str(self.folder / "cell.sh"), cell, str(self.folder), python]

    @property
    def title(self) -> str:
        """What names of jobs have of the folder's name."""
        return self.folder.name.rpartition(" ")[2]

    def begun(self) -> list[str]:
        """Cells in the order in which their commands began."""
        try:
            return [line.split()[0] for line in (self.folder / "begun").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def done(self, cell: str) -> bool:
        return (self.folder / f"{cell}.done").exists()

    def go(self) -> None:
        """Let the cells end that wait for it."""
        (self.folder / "go").touch()


def wait_for(true: Callable[[], object], what: str, *, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, f"waited {limit_s:g} s for {what}"
        time.sleep(0.1)


def until(
    executor: SlurmExecutor,
    enough: Callable[[list[Job], list[Ended]], bool],
    *,
    limit_s: float = 60.0,
) -> tuple[list[Job], dict[str, Ended]]:
    """Poll as a driver does until the jobs, and all ends so far, are enough."""
    ends: dict[str, Ended] = {}
    deadline_s = time.monotonic() + limit_s
    while True:
        jobs, ended = executor.poll()
        for one in ended:
            assert one.cell not in ends, f"{one.cell} ended twice"
            ends[one.cell] = one
        if enough(jobs, list(ends.values())):
            return jobs, ends
        assert time.monotonic() < deadline_s, f"after {limit_s:g} s: {jobs}, {ends}"
        time.sleep(0.1)


def until_over(executor: SlurmExecutor, *, limit_s: float = 60.0) -> dict[str, Ended]:
    """Poll until nothing is left."""
    return until(executor, lambda jobs, _: not jobs, limit_s=limit_s)[1]


def until_running(executor: SlurmExecutor, sweep: SweepOnSlurm, *cells: str) -> None:
    """Poll until these run, and their commands have begun."""
    until(
        executor,
        lambda jobs, _: {job.cell for job in jobs if job.state == "running"} >= set(cells),
    )
    wait_for(lambda: set(sweep.begun()) >= set(cells), f"{cells} to begin")

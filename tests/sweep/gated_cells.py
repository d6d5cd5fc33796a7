"""Cells in processes of their own that wait at the real gate; their launches only take time.

What a cell does is the second word of its id: see `PROGRAM`. Each launch is a line of `launches.txt`
with the cell, its number, begin and end; a launch that was stopped has no end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.sweep.test_driver import plan_of
from torchyard.core.study import Budget
from torchyard.sweep.execution import SweepDriver
from torchyard.sweep.executors.local import LocalExecutor
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import CellStatus, SweepView

PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
from torchyard.bench.launch_gate import LaunchStopped, ProvisionalResults
from torchyard.core.comparison import Comparison, Estimate, Interval, Verdict
from torchyard.core.study import Workload
from torchyard.sweep.cell import end_with_driver, stop_on_signals
from torchyard.sweep.cell_gate import CellGate
from torchyard.sweep.folder import SweepFolder

folder, cell = SweepFolder.open(Path(sys.argv[1])), sys.argv[2]
what = cell.split("-")[1]
stop_on_signals()
if not end_with_driver():
    sys.exit(130)
attempt = folder.begin(cell, place="here", heartbeat=True)
gate = CellGate.of_environment()

def note(*words):
    with open(folder.folder / "launches.txt", "a") as file:
        file.write(" ".join(map(str, (cell, *words))) + "\\n")

def progress(launches):
    estimate = Estimate(
        verdict=Verdict.UNDECIDED, speedup=1.3 if what == "clear" else 1.001,
        interval=Interval(low=0.9, high=1.1), p_value=None, launches=launches, pairs=6 * launches,
        pairs_dropped=0, launch_sd=0.01 if launches > 1 else None, pair_sd=0.01,
        minimum_detectable=None, time_needed_s=None)
    row = Comparison(workload=Workload(suite="kernels", name="matmul"), baseline="eager",
        candidate="aot_eager", verdict=Verdict.UNDECIDED, estimate=estimate if launches else None)
    return ProvisionalResults(launches=launches, undecided=("aot_eager",), comparisons=(row,))

def measure():
    needed = {"once": 1, "clear": 3, "endless": 10**6, "slow": 10**6}.get(what, 3)
    for number in range(needed):
        if not gate.admits(lambda: progress(number)):
            return
        began = time.monotonic()
        if what == "fails":
            sys.exit(5)
        if what == "dies" and number == 1 and attempt.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600 if what == "slow" else 0.3 if what == "endless" else 0.1)
        note(number, began, time.monotonic())

stopped = False
try:
    if what == "deaf":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        note(0, time.monotonic(), time.monotonic())
        time.sleep(600)
    measure()
except LaunchStopped:
    note("stopped")
except KeyboardInterrupt:
    folder.end(cell, attempt.number, "interrupted", why="interrupted", idle=gate.idle)
    sys.exit(130)
folder.end(cell, attempt.number, "finished")
"""


@dataclass(frozen=True)
class Launch:
    cell: str
    number: int
    began_s: float
    ended_s: float


def launches(folder: SweepFolder) -> list[Launch]:
    """Finished launches, in the order of their ends."""
    path = folder.folder / "launches.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return [Launch(one[0], int(one[1]), float(one[2]), float(one[3])) for one in words if one[3:]]


def sweep_of(path: Path, *whats: str, tries: int = 2) -> SweepFolder:
    """A sweep with a cell for each word."""
    return SweepFolder.create(path / "sweep", plan_of(*whats, tries=tries))


def executor_of(
    folder: SweepFolder,
    *,
    budget_s: float | None = None,
    seed: int = 1,
    at_most: int = 1,
    most_alive: int = 128,
    first_launch_s: dict[str, float] | None = None,
) -> LocalExecutor:
    """An executor whose cells run the program above."""
    return LocalExecutor(
        lambda cell: [sys.executable, "-c", PROGRAM, str(folder.folder), cell],
        folder.log_path,
        at_most=at_most,
        turn_folder=folder.folder / "turn",
        most_alive=most_alive,
        order=LaunchOrder(
            {cell.id: Budget() for cell in folder.plan.cells},
            seed=seed,
            first_launch_s=first_launch_s,
        ),
        deadline_s=float("inf") if budget_s is None else time.monotonic() + budget_s,
    )


def drive(
    folder: SweepFolder, executor: LocalExecutor, views: list[SweepView] | None = None
) -> list[CellStatus]:
    """Drive the sweep to its end; return the states of its cells."""
    seen: list[SweepView] = [] if views is None else views
    return SweepDriver(folder, executor, listener=seen.append, pause_s=0.05).run()


DRIVER_PROGRAM = """\
import sys
from pathlib import Path
from tests.sweep.gated_cells import drive, executor_of
from torchyard.sweep.folder import SweepFolder

folder = SweepFolder.open(Path(sys.argv[1]))
try:
    drive(folder, executor_of(folder))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_driver(folder: SweepFolder) -> subprocess.Popen[bytes]:
    """A driver in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER_PROGRAM, str(folder.folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def cell_processes(folder: SweepFolder) -> list[int]:
    """Processes that run a cell of the sweep."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(folder.folder) in words and b"sweep_of" not in words[0]:
                is_driver = any(b"executor_of" in word for word in words)
                if not is_driver:
                    pids.append(int(entry.name))
    return pids


def wait_until(condition: object, *, timeout_s: float = 60.0) -> None:
    """Wait until the callable returns True."""
    assert callable(condition)
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.05)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a driver that a failed test has left."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(30)

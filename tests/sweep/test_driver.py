"""The driver of a sweep, with real processes and a real folder: order, retries, limits, kills, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.sweep.execution import SweepDriver
from torchyard.sweep.executors.local import LocalExecutor
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Cell, SweepLimits, SweepPlan, SweepView

HERE = Target(name="here", python=sys.executable)

CELL_PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
from torchyard.sweep.folder import SweepFolder

folder, cell = SweepFolder.open(Path(sys.argv[1])), sys.argv[2]
attempt = folder.begin(cell, place="here")
print("attempt", attempt.number, "of", cell, flush=True)
what = cell.split("-")[1]
with open(folder.folder / "order.txt", "a") as file:
    file.write(cell + "\\n")
if what == "good":
    folder.end(cell, attempt.number, "finished")
elif what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif what == "second":
    if attempt.number == 1:
        sys.exit(5)
    folder.end(cell, attempt.number, "finished")
elif what == "hangs":
    time.sleep(600)
elif what == "slow":
    time.sleep(60 if attempt.number == 1 else 0)
    folder.end(cell, attempt.number, "finished")
elif what == "says":
    folder.end(cell, attempt.number, "died", why="it said so itself")
    sys.exit(5)
elif what == "silent":
    pass
"""


def plan_of(*whats: str, tries: int = 2, cell_s: float | None = None) -> SweepPlan:
    """A cell for each word, which says what its process will do."""
    eager = Variant(name="eager", target=HERE)
    other = Variant(name="aot_eager", target=HERE, backend="aot_eager")
    cells = tuple(
        Cell(
            id=f"{number:04d}-{what}",
            study=Study(
                name="sweep",
                baseline=eager,
                candidates=(other,),
                workloads=(Workload(suite="kernels", name="matmul"),),
            ),
        )
        for number, what in enumerate(whats)
    )
    return SweepPlan(name="sweep", cells=cells, limits=SweepLimits(tries=tries, cell_s=cell_s))


def driver_of(
    folder: SweepFolder, views: list[SweepView] | None = None, *, pause_s: float = 0.02
) -> SweepDriver:
    """A driver whose cells run the program above."""
    executor = LocalExecutor(
        lambda cell: [sys.executable, "-c", CELL_PROGRAM, str(folder.folder), cell],
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
    )
    seen: list[SweepView] = [] if views is None else views
    return SweepDriver(folder, executor, listener=seen.append, pause_s=pause_s)


def order(folder: SweepFolder) -> list[str]:
    """Cells as they were begun."""
    return (folder.folder / "order.txt").read_text().split()


def test_cells_run_in_the_order_of_the_plan_and_are_done(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good", "good", "good"))
    views: list[SweepView] = []
    statuses = driver_of(folder, views).run()
    assert [status.state for status in statuses] == ["done"] * 3
    assert order(folder) == ["0000-good", "0001-good", "0002-good"]
    assert views[-1].count("done") == 3
    assert views[-1].remaining_s == 0.0
    assert "attempt 1 of 0001-good" in folder.log_path("0001-good").read_text()


def test_a_crashed_cell_is_retried_and_then_given_up(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("killed", "second", "good"))
    killed, second, good = driver_of(folder).run()
    assert (killed.state, second.state, good.state) == ("failed", "done", "done")
    assert [attempt.outcome for attempt in killed.attempts] == ["died", "died"]
    assert "SIGKILL" in killed.text
    assert second.run == "cells/0001-second/run-2"
    assert second.attempts[0].why == "its process exited with code 5"


def test_the_record_of_a_cell_overrides_that_of_the_executor(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("says", "silent", tries=1))
    says, silent = driver_of(folder).run()
    assert (says.state, says.text) == ("failed", "it said so itself")
    assert (silent.state, silent.text) == (
        "failed",
        "its process ended without recording an outcome",
    )


def test_a_cell_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    plan = plan_of("hangs", "good", tries=1, cell_s=2.0)
    folder = SweepFolder.create(tmp_path / "sweep", plan)
    hangs, good = driver_of(folder).run()
    assert hangs.state == "failed"
    assert hangs.attempts[0].outcome == "time-limit"
    assert hangs.text == "timed out after 2 s"
    assert good.state == "done"


def test_the_driver_that_ended_a_cell_gives_the_reason(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good"))
    attempt = folder.begin("0000-good", place="node7")
    folder.end("0000-good", attempt.number, "interrupted", why="interrupted")
    folder.end("0000-good", attempt.number, "memory-limit", why="used more than 4 GiB")
    folder.end("0000-good", attempt.number, "died", why="too late")
    (only,) = folder.attempts("0000-good")
    assert (only.outcome, only.why) == ("memory-limit", "used more than 4 GiB")
    assert only.counts


def test_a_second_driver_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good"))
    with folder.driving(), pytest.raises(UsageError, match="another process") as caught:
        driver_of(SweepFolder.open(folder.folder)).run()
    assert str(os.getpid()) in caught.value.why


DRIVER_PROGRAM = """\
import sys
from pathlib import Path
from tests.sweep.test_driver import driver_of
from torchyard.sweep.folder import SweepFolder

try:
    driver_of(SweepFolder.open(Path(sys.argv[1]))).run()
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_driver(folder: SweepFolder) -> subprocess.Popen[bytes]:
    """A driver in a process of its own, once its second cell has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER_PROGRAM, str(folder.folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    deadline = time.monotonic() + 60
    while not (folder.folder / "order.txt").exists() or len(order(folder)) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_the_next_driver_repeats_nothing_that_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good", "slow", "good"))
    process = start_driver(folder)
    process.send_signal(number)
    process.wait(60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert folder.status("0001-slow").state == "waiting"
    for _ in range(100):  # a cell whose driver was killed may still be at work for a moment
        if folder.status("0001-slow").state != "running":
            break
        time.sleep(0.1)
    statuses = driver_of(SweepFolder.open(folder.folder)).run()
    assert [status.state for status in statuses] == ["done"] * 3
    begun = order(folder)
    assert begun.count("0000-good") == 1
    assert begun[-1] == "0002-good"


def test_a_cell_that_kills_the_driver_is_not_retried_forever(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good"))
    for _ in range(8):
        attempt = folder.begin("0000-good", place="here")
        folder.end("0000-good", attempt.number, "interrupted", why="reboot")
    assert folder.status("0000-good").state == "failed"


def test_a_folder_that_is_no_sweep_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the folder of a sweep"):
        SweepFolder.open(tmp_path)
    (tmp_path / "sweep.json").write_text('{"format": 99, "torchyard": "9.9"}')
    with pytest.raises(ResultsDamaged, match="newer Torchyard"):
        SweepFolder.open(tmp_path)
    (tmp_path / "sweep.json").write_text('{"format": 1, "name": 3}')
    with pytest.raises(ResultsDamaged, match="not the plan of a sweep"):
        SweepFolder.open(tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        SweepFolder.create(tmp_path, plan_of("good"))


def test_the_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    plan = plan_of("good", "slow", tries=3, cell_s=60.0)
    SweepFolder.create(tmp_path / "sweep", plan)
    assert SweepFolder.open(tmp_path / "sweep").plan == plan


def test_two_processes_never_get_the_same_attempt(tmp_path: Path) -> None:
    folder = SweepFolder.create(tmp_path / "sweep", plan_of("good"))
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from torchyard.sweep.folder import SweepFolder
        folder = SweepFolder.open(Path(sys.argv[1]))
        print([folder.begin("0000-good", place="x").number for _ in range(20)])
        """
    )
    argv = [sys.executable, "-c", program, str(folder.folder)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    numbers = [number for one in both for number in json.loads(one.communicate()[0])]
    assert sorted(numbers) == list(range(1, 41))

"""Sweeps in passes, with real processes: order, budget, and everything that can end at a wrong time."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweep.gated_cells import (
    cell_processes,
    drive,
    executor_of,
    launches,
    start_driver,
    stop,
    sweep_of,
    wait_until,
)
from torchyard.core.study import Budget
from torchyard.sweep.cell_gate import CellGate, DriverGate
from torchyard.sweep.executors import local
from torchyard.sweep.folder import MAX_INTERRUPTED, SweepFolder
from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import SweepView


def states(folder: SweepFolder) -> list[str]:
    return [status.state for status in folder.statuses()]


def test_every_cell_gets_a_launch_before_any_gets_a_second(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["good"] * 5)
    views: list[SweepView] = []
    drive(folder, executor_of(folder), views)
    assert states(folder) == ["done"] * 5
    numbers = [one.number for one in launches(folder)]
    assert numbers[:5] == [0] * 5
    assert sorted(numbers) == sorted([0, 1, 2] * 5)
    assert max(view.count("paused") for view in views) >= 4
    assert max(view.count("running") for view in views) == 1


def test_launches_do_not_overlap(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["good"] * 4)
    drive(folder, executor_of(folder))
    spans = sorted((one.began_s, one.ended_s) for one in launches(folder))
    assert len(spans) == 12
    for (_, ended_s), (began_s, _) in itertools.pairwise(spans):
        assert ended_s <= began_s


def test_the_order_is_random_and_given_by_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        order = LaunchOrder({f"{number:04d}-x": Budget() for number in range(40)}, seed=seed)
        cells = {f"{number:04d}-x" for number in range(40)}
        chosen = []
        while (cell := order.next_fresh(cells)) is not None:
            cells.remove(cell)
            chosen.append(cell)
        orders.append(chosen)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert orders[0] != sorted(orders[0])


def test_cells_beyond_the_largest_number_start_when_others_have_ended(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["good"] * 5)
    views: list[SweepView] = []
    drive(folder, executor_of(folder, most_alive=2), views)
    assert states(folder) == ["done"] * 5
    assert max(view.count("running", "paused") for view in views) == 2


def test_with_a_budget_cells_make_room_for_those_without_a_launch(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["endless"] * 2)
    drive(folder, executor_of(folder, most_alive=1, budget_s=30.0))
    assert {one.cell for one in launches(folder)} == {cell.id for cell in folder.plan.cells}
    assert states(folder) == ["done"] * 2


def test_several_launches_run_at_a_time(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["good"] * 4)
    views: list[SweepView] = []
    drive(folder, executor_of(folder, at_most=2), views)
    assert states(folder) == ["done"] * 4
    assert max(view.count("running") for view in views) == 2


def test_a_cell_that_waits_uses_no_processor_time(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "good", "slow")
    process = start_driver(folder)
    try:
        wait_until(lambda: len(launches(folder)) == 1 and len(cell_processes(folder)) == 2)
        pid = next(pid for pid in cell_processes(folder) if b"0000-good" in _command(pid))
        before = _ticks(pid)
        time.sleep(2.0)
        assert _ticks(pid) - before <= 2  # of 200
    finally:
        stop(process)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_cell_that_is_killed_while_it_waits_is_measured_again(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "good", "slow", "good")
    process = start_driver(folder)
    try:
        wait_until(lambda: len(launches(folder)) >= 1 and len(cell_processes(folder)) >= 2)
        first = launches(folder)[0].cell
        pid = next(pid for pid in cell_processes(folder) if first.encode() in _command(pid))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(folder.status(first).attempts) >= 1)
        wait_until(lambda: folder.status(first).attempts[0].outcome == "died")
        assert "SIGKILL" in folder.status(first).attempts[0].why
        assert process.poll() is None
    finally:
        stop(process)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_cell_that_dies_in_its_second_launch_is_measured_again(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "dies", "good")
    dies, good = drive(folder, executor_of(folder))
    assert (dies.state, good.state) == ("done", "done")
    assert [one.outcome for one in dies.attempts] == ["died", "finished"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_cells_that_wait_end_with_the_driver(tmp_path: Path, number: signal.Signals) -> None:
    folder = sweep_of(tmp_path, "once", "good", "good", "slow")
    process = start_driver(folder)
    try:
        wait_until(lambda: len(launches(folder)) >= 2 and len(cell_processes(folder)) >= 2)
        process.send_signal(number)
        process.wait(30)
        wait_until(lambda: not cell_processes(folder), timeout_s=20.0)
    finally:
        stop(process)
    finished = [one for one in folder.statuses() if one.state == "done"]
    for status in folder.statuses():
        assert status.state in ("done", "waiting")
        for attempt in status.attempts:
            # A driver that is killed may not have recorded the end of a cell: it is measured again.
            unrecorded = number == signal.SIGKILL and status.state == "waiting"
            assert attempt.outcome in ("finished", "interrupted", *([None] if unrecorded else []))
    before = {one.cell.id: len(one.attempts) for one in finished}
    statuses = drive(folder, executor_of(folder, budget_s=20.0))
    assert sum(one.state == "done" for one in statuses) >= 3
    assert {one.cell.id: len(one.attempts) for one in statuses if one.cell.id in before} == before


def test_resume_after_a_kill_in_the_second_pass(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "once", "endless", "endless")
    process = start_driver(folder)
    try:
        wait_until(lambda: any(one.number >= 1 for one in launches(folder)))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        wait_until(lambda: not cell_processes(folder), timeout_s=20.0)
    finally:
        stop(process)
    once, *others = folder.statuses()
    assert once.state == "done"
    assert [one.state for one in others] == ["waiting", "waiting"]
    once, *others = drive(folder, executor_of(folder, budget_s=12.0))
    assert [one.state for one in (once, *others)] == ["done"] * 3
    assert len(once.attempts) == 1
    assert [len(one.attempts) for one in others] == [2, 2]


def test_a_cell_that_only_waited_is_not_given_up_after_many_interrupts(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "good")
    for _ in range(MAX_INTERRUPTED + 1):
        attempt = folder.begin("0000-good", place="here")
        folder.end("0000-good", attempt.number, "interrupted", why="interrupted", idle=True)
    assert states(folder) == ["waiting"]


def test_a_launch_in_progress_is_stopped_when_the_budget_ends(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "endless", "endless")
    began_s = time.monotonic()
    executor = executor_of(folder, budget_s=10.0)
    statuses = drive(folder, executor)
    wall_s = time.monotonic() - began_s
    assert executor.out_of_time
    assert [one.state for one in statuses] == ["done", "done"]
    assert {one.cell for one in launches(folder)} == {"0000-endless", "0001-endless"}
    assert not cell_processes(folder)
    assert wall_s < 10.0 + 10.0  # far below the time that the cells would take


def test_a_cell_much_slower_than_expected_does_not_exceed_the_budget(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "once", "slow")
    expected_s = {cell.id: 1.0 for cell in folder.plan.cells}
    executor = executor_of(folder, budget_s=30.0, first_launch_s=expected_s)
    statuses = {one.cell.id: one for one in drive(folder, executor)}
    # Its first launch was stopped: the cell of this test records that as finished without a launch.
    assert statuses["0001-slow"].state == "done"
    assert "0001-slow stopped" in (folder.folder / "launches.txt").read_text()
    assert not cell_processes(folder)


def test_a_budget_smaller_than_one_launch(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "good", "good", "good")
    executor = executor_of(folder, budget_s=0.5)
    statuses = drive(folder, executor)
    assert executor.out_of_time
    assert [one.state for one in statuses] == ["waiting"] * 3
    assert {one.text for one in statuses} == {local.NO_LAUNCH}
    assert not launches(folder)
    # A later budget measures all of them.
    assert [one.state for one in drive(folder, executor_of(folder))] == ["done"] * 3


def test_a_cell_without_a_handler_yet_is_not_called_crashed(tmp_path: Path) -> None:
    """The signal that ends a budget arrives while the process still imports."""
    folder = sweep_of(tmp_path, "good", tries=1)
    executor = executor_of(folder, budget_s=local.ENDING_S + local.ENDING_CELL_S + 0.05)
    (status,) = drive(folder, executor)
    assert status.state == "waiting"
    assert status.attempts[-1].outcome == "cancelled"
    assert not status.attempts[-1].counts


def test_launches_that_do_not_fit_are_not_started(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, "good", "good")
    expected_s = {"0000-good": 600.0, "0001-good": 0.5}
    executor = executor_of(folder, budget_s=20.0, first_launch_s=expected_s)
    first, second = drive(folder, executor)
    assert (first.state, second.state) == ("waiting", "done")
    assert first.attempts[-1].place == "never started"


def test_a_cell_that_does_not_end_after_the_budget_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "STOP_TIMEOUT_S", 1.0)
    folder = sweep_of(tmp_path, "deaf")
    (status,) = drive(folder, executor_of(folder, budget_s=10.0))
    assert status.state == "waiting"
    assert "did not end within" in status.text
    assert not cell_processes(folder)


def test_all_cells_fail(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["fails"] * 3)
    statuses = drive(folder, executor_of(folder, budget_s=60.0))
    assert [one.state for one in statuses] == ["failed"] * 3
    assert all(len(one.attempts) == 2 for one in statuses)


def test_the_time_limit_of_a_cell_counts_launches_only(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path, *["good"] * 4)
    executor = executor_of(folder)
    executor._limit_s = 60.0
    drive(folder, executor)
    assert states(folder) == ["done"] * 4


def test_the_gate_is_not_inherited_by_processes_of_the_cell() -> None:
    driver_side = DriverGate()
    gate = CellGate(os.dup(driver_side.cell_end.fileno()))
    assert gate._socket is not None
    number = gate._socket.fileno()
    code = f"import os, sys\ntry:\n    os.fstat({number})\nexcept OSError:\n    sys.exit(7)"
    argv = [sys.executable, "-c", code]
    assert subprocess.run(argv, check=False, close_fds=False).returncode == 7
    gate._socket.close()
    driver_side.close()

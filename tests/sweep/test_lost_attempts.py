"""Attempts whose process is gone: in a container, on another host, with a partial file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sweep.sample_sweeps import cell as cell_of
from tests.sweep.sample_sweeps import plan, study, workload
from torchyard.errors import ResultsDamaged
from torchyard.process.owner import this_process
from torchyard.sweep.execution import SweepDriver
from torchyard.sweep.executors.interface import Ended, Job
from torchyard.sweep.folder import LOST_S, AttemptClaim, SweepFolder
from torchyard.sweep.model import SweepView

ELSEWHERE = {
    "other host": {"host": "node-9", "boot": "another", "pid": 1},
    "restarted container": {"host": "f00f", "namespace": "pid:[1]"},
    "other pid namespace": {"namespace": "pid:[1]"},
    "no owner": None,
    "owner without pid": {"pid": None},
    "owner of another type": 7,
}
HOLD = """
import sys, time
from pathlib import Path
from torchyard.sweep.folder import AttemptClaim
claim = AttemptClaim.create(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder.create(
        tmp_path / "sweep",
        plan([cell_of(number, study(workload(f"w{number}"))) for number in range(2)]),
    )


def attempt_path(folder: SweepFolder) -> Path:
    cell = folder.plan.cells[0].id
    path = folder.folder / "cells" / cell / "attempt-1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def record_of(owner: object, **more: object) -> str:
    return json.dumps({"number": 1, "place": "node-9", "owner": owner, **more})


def leave_attempt(folder: SweepFolder, text: str, *, age_s: float) -> Path:
    path = attempt_path(folder)
    path.write_text(text)
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    return path


def owner_like(kind: str) -> object:
    change = ELSEWHERE[kind]
    return {**this_process(), **change} if isinstance(change, dict) else change


class Cells:
    """An executor that finishes what is handed in."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self.measured: list[str] = []

    def submit(self, cells: Sequence[str]) -> None:
        for cell in cells:
            attempt = self._folder.begin(cell, place="here")
            self._folder.end(cell, attempt.number, "finished")
            self.measured.append(cell)

    def poll(self) -> tuple[list[Job], list[Ended]]:
        return [], []

    def wait(self, pause_s: float) -> None:
        time.sleep(pause_s)

    def cancel(self) -> None:
        """Nothing runs."""

    def detach(self) -> str:
        return ""


def drive(folder: SweepFolder, **options: object) -> tuple[list[str], list[str]]:
    """Cells that were measured, and the states at the end."""
    cells = Cells(folder)

    def ignore(_view: SweepView) -> None:
        return

    driver = SweepDriver(folder, cells, listener=ignore, pause_s=0.01, **options)  # type: ignore[arg-type]
    return cells.measured, [one.state for one in driver.run()]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_silent_attempt_on_another_host_is_measured_again(folder: SweepFolder, kind: str) -> None:
    text = record_of(owner_like(kind), heartbeat_s=20.0)
    leave_attempt(folder, text, age_s=LOST_S + 5)
    measured, states = drive(folder)
    assert sorted(measured) == sorted(cell.id for cell in folder.plan.cells)
    assert states == ["done", "done"]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_an_attempt_with_a_heartbeat_is_left_alone(folder: SweepFolder, kind: str) -> None:
    leave_attempt(folder, record_of(owner_like(kind), heartbeat_s=20.0), age_s=1)
    measured, states = drive(folder, wait_s=0.05)
    assert measured == [folder.plan.cells[1].id]
    assert states == ["running", "done"]
    # What somebody else runs can be taken over.
    measured, states = drive(folder, take_over=True)
    assert measured == [folder.plan.cells[0].id]
    assert states == ["done", "done"]
    assert folder.attempts(folder.plan.cells[0].id)[0].why == "taken over from node-9"


@pytest.mark.parametrize("text", ["", "{", '{"number": 1, "pla', "[]", "null", "\x00" * 40])
def test_a_file_left_empty_or_partial_by_a_kill(folder: SweepFolder, text: str) -> None:
    leave_attempt(folder, text, age_s=LOST_S + 5)
    assert drive(folder)[1] == ["done", "done"]


def test_a_partial_file_of_this_moment_may_be_somebody_writing(folder: SweepFolder) -> None:
    leave_attempt(folder, "", age_s=0)
    assert drive(folder, wait_s=0.05)[1] == ["running", "done"]
    assert drive(folder, take_over=True)[1] == ["done", "done"]


def test_an_attempt_that_is_no_attempt(folder: SweepFolder) -> None:
    path = leave_attempt(folder, '{"began": 7}', age_s=0)
    with pytest.raises(ResultsDamaged, match=str(path)) as caught:
        folder.statuses()
    assert "delete the file" in caught.value.hint


def test_a_driver_waits_for_a_process_that_ends_or_stops_its_heartbeat(folder: SweepFolder) -> None:
    path = leave_attempt(
        folder, record_of(owner_like("other host"), heartbeat_s=20.0), age_s=LOST_S - 1
    )
    measured, states = drive(folder, wait_s=60.0)  # lost about a second from now
    assert folder.plan.cells[0].id in measured
    assert states == ["done", "done"]
    assert path.exists()


def test_an_attempt_lost_right_after_the_check_is_measured_again(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = record_of(owner_like("other host"), heartbeat_s=20.0)
    path = leave_attempt(folder, text, age_s=1)
    close_lost = folder.close_lost
    closed: list[list[str]] = []

    def close_then_age(**options: object) -> list[str]:
        closed.append(close_lost(**options))  # type: ignore[arg-type]
        if len(closed) == 2:
            os.utime(path, (0, 0))
        return closed[-1]

    monkeypatch.setattr(folder, "close_lost", close_then_age)
    measured, states = drive(folder, wait_s=60.0)
    assert closed == [[], [], [folder.plan.cells[0].id], []]
    assert sorted(measured) == [cell.id for cell in folder.plan.cells]
    assert states == ["done", "done"]


def test_the_lock_tells_a_living_process_of_another_namespace(folder: SweepFolder) -> None:
    """However old its last heartbeat is; the kernel releases the lock when the process is killed."""
    path = attempt_path(folder)
    text = record_of(owner_like("restarted container"), heartbeat_s=20.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), text], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        os.utime(path, (0, 0))
        assert folder.statuses()[0].state == "running"
        assert folder.close_lost() == []
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert folder.close_lost() == [folder.plan.cells[0].id]
    assert folder.statuses()[0].state == "waiting"


def test_a_claim_is_whole_or_not_there(tmp_path: Path) -> None:
    """Killed at any system call, a process leaves no attempt that says nothing."""
    path = tmp_path / "attempt-1.json"
    text = record_of(this_process())
    claim = AttemptClaim.create(path, text)
    assert path.read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    with pytest.raises(FileExistsError):
        AttemptClaim.create(path, text)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    claim.release()
    claim.release()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "attempt-1.json"
    AttemptClaim.create(path, "{}").release()
    assert path.read_text() == "{}"
    with pytest.raises(FileExistsError):
        AttemptClaim.create(path, "{}")


def test_a_heartbeat_touches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard.sweep.folder.HEARTBEAT_S", 0.01)
    path = tmp_path / "attempt-1.json"
    claim = AttemptClaim.create(path, "{}")
    os.utime(path, (0, 0))
    claim.start_heartbeat()
    try:
        deadline = time.monotonic() + 60
        while path.stat().st_mtime < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 1
    finally:
        claim.release()


def test_cells_that_an_executor_runs_are_not_lost(folder: SweepFolder) -> None:
    """A job of a cluster may be suspended for hours."""
    leave_attempt(folder, record_of(owner_like("other host"), heartbeat_s=20.0), age_s=LOST_S * 9)
    cell = folder.plan.cells[0].id
    assert folder.close_lost(running={cell}, take_over=True) == []
    assert folder.close_lost() == [cell]


def test_own_attempts_are_never_taken_over(folder: SweepFolder) -> None:
    cell = folder.plan.cells[0].id
    attempt = folder.begin(cell, place="here")
    assert folder.close_lost(take_over=True) == []
    folder.end(cell, attempt.number, "finished")
    assert replace(folder.attempts(cell)[0], ended="").outcome == "finished"

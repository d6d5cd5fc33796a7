"""The phases of a session: what is recorded, and that their sums are the wall time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tiny_bench import bench, write_file
from torchyard.bench.timeline import COMPILATION, OTHER, TIMED, WAITING, Timeline, phase_times
from torchyard.process.timing_turn import record_pause, record_waits
from torchyard.results.run_reader import read_run


class Clock:
    """A clock that advances when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def answer(self, seconds: float, **fields: Any) -> dict[str, Any]:
        self.now_s += seconds
        return fields


def record(*phases: tuple[str, float, float], workload: str = "w") -> dict[str, Any]:
    return {"workload": workload, "phases": [[name, "", *times] for name, *times in phases]}


def test_a_request_is_a_phase_that_contains_its_timed_part() -> None:
    clock = Clock()
    timeline = Timeline(clock=clock)
    with timeline.phase(OTHER):
        clock.now_s += 1.0
        timeline.ask("block", "a", lambda: clock.answer(3.0, wall_ns=2 * 10**9))
        timeline.ask("judge", "b", lambda: clock.answer(5.0, compile_s=4.0))
    times = phase_times([{"workload": "w", "phases": timeline.take()}])
    assert times.seconds == pytest.approx(
        {COMPILATION: 4.0, TIMED: 2.0, OTHER: 1.0, "block set-up": 1.0, "accuracy check": 1.0}
    )
    assert times.wall_s == pytest.approx(9.0)
    assert timeline.take() == []


def test_pauses_of_a_request_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard.process.timing_turn._spans", [])  # not for other tests
    clock = Clock()
    clock.now_s = 1e9
    timeline = Timeline(clock=clock)
    record_pause(1e9 - 5.0, 1e9 + 1.0)
    record_waits([[1e9 + 3.0, 1e9 + 4.5], ["damaged", None], [1e9 + 5.5, 1e9 + 90.0]])
    timeline.ask("judge", "b", lambda: clock.answer(6.0, compile_s=5.0))
    phases = timeline.take()
    waits = [phase[2:] for phase in phases if phase[0] == WAITING]
    assert waits == [(0.0, 1.0), (3.0, 4.5), (5.5, 6.0)]
    times = phase_times([{"workload": "w", "phases": phases}])
    assert times.seconds == pytest.approx({COMPILATION: 2.5, "accuracy check": 0.5})


def test_a_failed_request_is_recorded() -> None:
    clock = Clock()
    timeline = Timeline(clock=clock)

    def fail() -> dict[str, Any]:
        clock.now_s += 2.0
        raise ValueError

    with pytest.raises(ValueError):
        timeline.ask("warm", "a", fail)
    assert timeline.take() == [("warm-up", "a", 0.0, 2.0)]


def test_a_clock_of_a_worker_cannot_exceed_its_request() -> None:
    clock = Clock()
    timeline = Timeline(clock=clock)
    timeline.ask("block", "a", lambda: clock.answer(1.0, wall_ns=9 * 10**9))
    timeline.ask("warm", "a", lambda: clock.answer(1.0, compile_s=9.0))
    assert phase_times([{"phases": timeline.take()}]).seconds == {TIMED: 1.0, COMPILATION: 1.0}


def test_sums_are_the_wall_time_of_any_nesting() -> None:
    chance = random.Random(7)
    for _ in range(50):
        phases = [("outer", 0.0, 100.0)]
        for number in range(chance.randrange(30)):
            start = chance.uniform(0.0, 99.0)
            phases.append((f"p{number % 5}", start, chance.uniform(start, 100.0)))
        assert phase_times([record(*phases)]).wall_s == pytest.approx(100.0)


def test_processes_that_build_side_by_side_count_once() -> None:
    times = phase_times([record(("build", 0.0, 3.0), ("build", 1.0, 4.0))])
    assert times.seconds == {"build": 4.0}


def test_waiting_for_other_sessions_does_not_count() -> None:
    times = phase_times([record(("other", 0.0, 10.0), ("waiting", 2.0, 9.0), (TIMED, 9.0, 10.0))])
    assert times.seconds == {"other": 2.0, TIMED: 1.0}


def test_the_share_after_compilation_leaves_out_only_the_first_launch_of_each_workload() -> None:
    launches = [
        record(("other", 0.0, 10.0), (COMPILATION, 0.0, 8.0), (TIMED, 9.0, 10.0)),
        record(("other", 20.0, 22.0), (COMPILATION, 20.0, 21.0), (TIMED, 21.0, 22.0)),
        record((COMPILATION, 0.0, 6.0), (TIMED, 6.0, 7.0), workload="v"),
    ]
    times = phase_times(launches)
    assert times.timed_share == pytest.approx(3.0 / 19.0)
    assert times.timed_share_after_compilation == pytest.approx(3.0 / 5.0)


@pytest.mark.parametrize(
    "phases",
    [
        None,
        7,
        "timed blocks",
        {"a": 1},
        [None, 3, "x", [], ["a", "b", 1.0], ["a", "b", "1", "2"], [1, "b", 1.0, 2.0]],
        [["a", "b", 2.0, 1.0], ["a", "b", float("nan"), 1.0], ["a", "b", 0.0, float("inf")]],
    ],
)
def test_records_of_old_versions_and_damaged_ones_have_no_phases(phases: object) -> None:
    times = phase_times([{"workload": "w", "phases": phases}, {"workload": "w"}])
    assert times.seconds == {}
    assert times.timed_share is None
    assert times.timed_share_after_compilation is None


@pytest.mark.torch
def test_a_real_run_accounts_for_its_wall_time(tmp_path: Path) -> None:
    workload = write_file(
        tmp_path,
        "sleepy.py",
        """
        import time
        import torch

        class Net(torch.nn.Module):
            def forward(self, x):
                time.sleep(0.004)
                return x + 1

        def make():
            time.sleep(0.5)
            return Net(), torch.ones(8)
        """,
    )
    bench(tmp_path / "run", f"{workload}:make", launches=2)
    run = read_run(tmp_path / "run")
    launches = run.launches()
    times = phase_times(launches)
    assert len(launches) == 2
    for launch in launches:
        names = {name for name, *_ in launch["phases"]}
        assert {"process start", "model build", "warm-up", TIMED, "process exit"} <= names
        blocks = [block for _, block in run.blocks() if block.launch == launch["launch"]]
        timed = [phase for phase in launch["phases"] if phase[0] == TIMED]
        assert len(timed) == len(blocks)
    assert times.seconds["model build"] >= 2 * 0.5
    wall_s = sum(block.wall_ns for _, block in run.blocks()) / 1e9
    assert times.seconds[TIMED] == pytest.approx(wall_s, rel=0.05)
    outer = [p for launch in launches for p in launch["phases"] if p[0] == OTHER]
    assert times.wall_s == pytest.approx(sum(end - start for *_, start, end in outer), rel=0.05)

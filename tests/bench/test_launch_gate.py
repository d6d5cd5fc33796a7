"""A session waits at its gate before each launch, and the wait counts as nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from torchyard.bench import session
from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch_gate import LaunchGate, LaunchStopped, ProvisionalResults
from torchyard.bench.pacing import SessionClock
from torchyard.core.comparison import Comparison
from torchyard.core.events import Event
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant, Workload
from torchyard.results.run_reader import read_run

HERE = Target(name="here", python=sys.executable)
pytestmark = pytest.mark.torch


def study(launches: int) -> Study:
    return Study(
        name="gate",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="again", target=HERE, options=(("inference-mode", True),)),),
        workloads=(Workload(suite="kernels", name="softmax"),),
        budget=Budget(time_s=600.0, launch_s=0.3, min_launches=launches, max_launches=launches),
        settings=MeasureSettings(threads=1, check_accuracy=False),
    )


class TimedGate(LaunchGate):
    """Waits, and closes after some launches."""

    def __init__(self, folder: Path, *, wait_s: float, most: int) -> None:
        self._folder = folder
        self._wait_s = wait_s
        self._most = most
        self.waited_s = 0.0
        self.why_closed = "closed by the test"
        self.stored: list[int] = []
        """Launches in the run folder at each call, if it has the provisional comparison."""

    def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:
        current = progress()
        stored = read_run(self._folder)
        self.stored.append(len(stored.launches()) if stored.comparisons else 0)
        time.sleep(self._wait_s)
        self.waited_s += self._wait_s
        return current.launches < self._most


def run(
    folder: Path, gate: LaunchGate, launches: int, events: list[Event] | None = None
) -> Comparison:
    listened: list[Event] = [] if events is None else events
    (row,) = run_bench(
        study(launches), folder=folder, command=["x"], listener=listened.append, gate=gate
    )
    return row


def test_waiting_is_not_measuring_time(tmp_path: Path) -> None:
    wait_s = 200.0  # of a budget of 600 s, without waiting for it
    gate = TimedGate(tmp_path / "run", wait_s=0.0, most=2)
    admits = gate.admits

    def pretended(progress: Callable[[], ProvisionalResults]) -> bool:
        admitted = admits(progress)
        gate.waited_s += wait_s
        return admitted

    real = time.monotonic

    def pretended_s() -> float:
        return real() + gate.waited_s

    gate.admits = pretended  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", pretended_s)
        patch.setattr(session, "SessionClock", partial(SessionClock, clock=pretended_s))
        row = run(tmp_path / "run", gate, 5)
    assert gate.waited_s == 3 * wait_s
    assert row.elapsed_s < wait_s
    assert len(read_run(tmp_path / "run").launches()) == 2  # a noisy one has no clean pair
    assert "closed by the test" in row.notes


def test_provisional_comparisons_are_stored_before_each_wait(tmp_path: Path) -> None:
    gate = TimedGate(tmp_path / "run", wait_s=0.0, most=2)
    events: list[Event] = []
    run(tmp_path / "run", gate, 5, events)
    assert gate.stored == [0, 1, 2]
    kinds = [event.kind for event in events if event.kind in ("paused", "resumed")]
    assert kinds == ["paused", "resumed", "paused"]
    final = read_run(tmp_path / "run")
    assert final.state == "finished"
    assert len(final.comparisons) == 1


def test_a_launch_that_is_stopped_leaves_the_earlier_ones(tmp_path: Path) -> None:
    class StoppingGate(LaunchGate):
        """Stops the second launch a moment after it was admitted."""

        def admits(self, progress: Callable[[], ProvisionalResults]) -> bool:
            if progress().launches:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            return True

    def handle(_number: int, _frame: object) -> None:
        raise LaunchStopped

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        row = run(tmp_path / "run", StoppingGate(), 5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert row.failure is None
    stored = read_run(tmp_path / "run")
    assert len(stored.launches()) == 1
    assert stored.state == "finished"


def test_a_gate_that_is_closed_from_the_start(tmp_path: Path) -> None:
    row = run(tmp_path / "run", TimedGate(tmp_path / "run", wait_s=0.0, most=0), 5)
    assert row.estimate is not None
    assert row.estimate.launches == 0
    assert row.elapsed_s == 0.0

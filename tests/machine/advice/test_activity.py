"""Activity of a machine in a short window: fake machines whose files change meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machine.trees import make_tree
from torchyard.machine.advice.activity import (
    Activity,
    BusyProgram,
    activity_facts,
    observe_activity,
)
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WINDOW_S = 0.1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree("smt-off-at-boot", tmp_path)


def watch(root: Path, change: Callable[[], None] = lambda: None) -> Activity:
    """Change the files in the middle of a real sleep."""

    def sleep(duration_s: float) -> None:
        change()
        time.sleep(duration_s)

    return observe_activity(Machine(files=FileTree(root)), window_s=WINDOW_S, sleep=sleep)


def use(root: Path, pid: int, duration_s: float, name: str = "") -> None:
    """Let a process have used so much more."""
    path = root / f"proc/{pid}/stat"
    head, _, tail = path.read_text().rpartition(")")
    fields = tail.split()
    fields[11] = str(int(fields[11]) + round(duration_s * TICKS_PER_S))
    head = f"{pid} ({name}" if name else head
    path.write_text(f"{head}) {' '.join(fields)}\n")


def test_a_quiet_machine(root: Path) -> None:
    activity = watch(root)
    assert activity.processors == 4
    assert activity.window_s >= WINDOW_S
    assert activity.busy_processors == 0
    assert activity.busy_share == 0
    assert activity.busiest == ()
    assert activity.waiting_share == 0
    assert activity.stolen_share == 0
    assert activity.swapped_pages_per_s == 0
    assert activity.throttle_events == 0


def test_busy_processes_are_named(root: Path) -> None:
    activity = watch(root, lambda: use(root, 700, 0.2, name="make) (x"))
    assert activity.busy_processors is not None
    # The window is at least a tenth of a second; on a machine under load it may be longer.
    assert activity.busy_processors == pytest.approx(0.2 / activity.window_s, rel=0.01)
    assert activity.busiest == (BusyProgram(name="make) (x", processors=activity.busy_processors),)
    assert activity.busy_share == activity.busy_processors / 4


def test_time_that_the_host_took(root: Path) -> None:
    def steal() -> None:
        path = root / "proc/stat"
        lines = []
        for line in path.read_text().splitlines():
            fields = line.split()
            if fields[0].startswith("cpu") and fields[0] != "cpu":
                fields[8] = str(int(fields[8]) + 5)
            lines.append(" ".join(fields))
        path.write_text("\n".join(lines) + "\n")

    activity = watch(root, steal)
    assert activity.stolen_share == pytest.approx(5 / TICKS_PER_S / activity.window_s, rel=0.01)


def test_waiting_is_the_larger_of_now_and_of_the_last_ten_seconds(root: Path) -> None:
    path = root / "proc/pressure/cpu"
    path.write_text("some avg10=12.50 avg60=0.00 avg300=0.00 total=1000\n")
    assert watch(root).waiting_share == 0.125

    def wait() -> None:
        path.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=90000000\n")

    assert watch(root, wait).waiting_share == 1.0


def test_swapping_and_throttling(root: Path) -> None:
    def swap() -> None:
        path = root / "proc/vmstat"
        path.write_text(path.read_text().replace("pswpin 0", "pswpin 900"))
        count = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
        (root / count).write_text("3\n")

    activity = watch(root, swap)
    assert activity.swapped_pages_per_s is not None
    assert activity.swapped_pages_per_s > 100
    assert activity.throttle_events == 3


def test_an_empty_root_says_nothing_and_raises_nothing(tmp_path: Path) -> None:
    activity = watch(tmp_path)
    assert activity.processors == 0
    assert activity.busy_share is None
    assert activity.stolen_share is None
    assert all(fact.unavailable for fact in activity_facts(activity))


def test_a_copied_machine_is_read_without_waiting(root: Path) -> None:
    (root / "proc/loadavg").write_text("3.50 1.00 0.50 1/100 5\n")

    def sleep(_: float) -> None:
        pytest.fail("there is nothing to wait for")

    activity = observe_activity(Machine(files=FileTree(root)), window_s=0, sleep=sleep)
    assert activity.busy_processors == 3.5
    assert activity.window_s == 0
    assert [fact.unavailable for fact in activity_facts(activity)] == ["a copy has no activity"] * 2
    (root / "proc/loadavg").write_text("much\n")
    assert observe_activity(Machine(files=FileTree(root)), window_s=0).busy_processors is None


def test_facts_are_text(root: Path) -> None:
    activity = Activity(
        processors=4,
        window_s=0.5,
        busy_processors=1.25,
        busiest=(BusyProgram(name="cc1plus", processors=1.2),),
        stolen_share=0.031,
    )
    assert [fact.text for fact in activity_facts(activity)] == ["1.2 of 4: cc1plus 1.2", "3.1%"]


SPIN = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"yardspin")
end = time.monotonic() + 60  # by itself, should the test be killed
while time.monotonic() < end:
    pass
"""


def test_a_real_busy_process_is_seen() -> None:
    """One that does not descend from us: our own are those that we measure."""
    script = '"$0" -c "$1" >/dev/null 2>&1 & echo $!'
    started = subprocess.run(
        ["sh", "-c", script, sys.executable, SPIN], capture_output=True, text=True, check=True
    )
    try:
        deadline = time.monotonic() + 30
        used = 0.0
        while used < 0.05 and time.monotonic() < deadline:
            activity = observe_activity(Machine(), window_s=0.3)
            used = sum(busy.processors for busy in activity.busiest if busy.name == "yardspin")
        assert used >= 0.05
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)

"""The load monitor on this machine, with a busy process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard.machine.load_monitor import COST_SHARE, KINDS, LoadMonitor, NoiseSource


@contextmanager
def busy_process(folder: Path) -> Iterator[None]:
    """A child of a child that has ended, under a name of its own: not one of ours."""
    program = folder / "yardspinner"
    program.write_text(
        f"#!{sys.executable}\nimport os\nprint(os.getpid(), flush=True)\nwhile 1: 0\n"
    )
    program.chmod(0o755)
    # The shell ends at once, so the busy process gets another parent.
    subprocess.run(["sh", "-c", '"$0" >"$1" &', program, folder / "pid"], check=True)
    deadline = time.monotonic() + 20
    while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((folder / "pid").read_text())
    try:
        yield
    finally:
        os.kill(pid, 9)


def until_samples(monitor: LoadMonitor, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(monitor.samples) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_real_busy_process_is_named(tmp_path: Path) -> None:
    spinner = NoiseSource("process", "yardspinner")
    deadline = time.monotonic() + 60
    with busy_process(tmp_path), LoadMonitor(period_s=0.2) as monitor:
        amounts: list[float] = []
        # It gets its share even of a machine that is busy otherwise.
        while len(amounts) < 2 or max(amounts) <= 5 * KINDS["process"].limit:
            assert time.monotonic() < deadline, amounts
            time.sleep(0.1)
            amounts = [sample.amounts.get(spinner, 0.0) for sample in monitor.samples]
    assert monitor.unavailable == {}


def test_our_own_children_are_not_counted(tmp_path: Path) -> None:
    program = tmp_path / "ownchild"
    program.write_text(f"#!{sys.executable}\nwhile 1: 0\n")
    program.chmod(0o755)
    with subprocess.Popen([program]) as child:
        try:
            with LoadMonitor(period_s=0.2) as monitor:
                until_samples(monitor, 2)
        finally:
            child.kill()
    names = {who.what for sample in monitor.samples for who in sample.amounts}
    assert names
    assert "ownchild" not in names


def test_it_costs_little_and_ends(tmp_path: Path) -> None:
    with LoadMonitor(period_s=0.01) as monitor:
        until_samples(monitor, 4)
    seen = len(monitor.samples)
    # The looks themselves are further apart than asked for, so that they cost what they may; the
    # last one comes early, because it was told to stop.
    assert monitor.cost_share < 4 * COST_SHARE
    time.sleep(0.1)
    assert len(monitor.samples) == seen


def test_the_monitor_thread_avoids_the_measured_cores() -> None:
    online = sorted(os.sched_getaffinity(0))
    if len(online) < 2:
        pytest.skip("needs two cores")
    mine = os.sched_getaffinity(0)
    with LoadMonitor(cores=(online[0],), period_s=0.05):
        time.sleep(0.2)
        allowed = [
            os.sched_getaffinity(thread.native_id)
            for thread in threading.enumerate()
            if thread.name == "torchyard-monitor" and thread.native_id is not None
        ]
    assert os.sched_getaffinity(0) == mine
    assert len(allowed) == 1
    assert online[0] not in allowed[0]

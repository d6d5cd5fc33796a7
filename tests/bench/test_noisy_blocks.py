"""A run with and without processes that compete for its cores: the readings of the guards.

The machine that runs this may be busy by itself, so the quiet half is only held to what it can show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from tests.bench.tiny_bench import bench, write_file
from torchyard.bench.report.formats import FORMATS
from torchyard.core.block import Block
from torchyard.core.comparison import Verdict
from torchyard.machine.guards.block_check import WAITED
from torchyard.results.run_reader import Run, read_run

pytestmark = pytest.mark.torch

FIGHTERS_PER_CORE = 3
BUSY_LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True:\n    pass"
WORK = """
    import torch
    def make():
        size = 96
        return torch.matmul, (torch.ones(size, size), torch.ones(size, size))
"""


@contextmanager
def fighters() -> Iterator[None]:
    """Busy loops on every core that the workers may use; they end with this."""
    started = [
        subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(core)])
        for core in sorted(os.sched_getaffinity(0))
        for _ in range(FIGHTERS_PER_CORE)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def measured(folder: Path, work: str) -> tuple[Run, list[Block]]:
    bench(folder, work)
    run = read_run(folder)
    return run, [block for _, block in run.blocks()]


def wait_share(blocks: Sequence[Block]) -> float:
    return median((block.guard.run_queue_wait_ns or 0) / block.wall_ns for block in blocks)


def test_contention_for_cores_makes_blocks_dirty_and_is_reported(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) > 16:
        pytest.skip("too many cores to keep all of them busy")
    work = write_file(tmp_path, "work.py", WORK)
    with fighters():
        disturbed, blocks = measured(tmp_path / "disturbed", work)
    if blocks[0].guard.run_queue_wait_ns is None:
        pytest.skip("this kernel does not tell how long a process waits")
    waited = [block for block in blocks if WAITED in block.dirty]
    assert len(waited) > 0.8 * len(blocks)
    row = disturbed.comparisons[0]
    assert row.untrusted[0].startswith("noisy machine")
    assert row.state is Verdict.UNTRUSTED
    assert row.guards.blocks == len(blocks)
    assert dict(row.guards.reasons)[WAITED] == len(waited)
    for name in ("terminal", "markdown", "json", "csv", "html"):
        assert WAITED in FORMATS[name](disturbed), name

    quiet, blocks = measured(tmp_path / "quiet", work)
    row = quiet.comparisons[0]
    assert row.guards.dirty == sum(1 for block in blocks if block.dirty)
    if wait_share(blocks) < 0.02:
        # Other programs may also lower the clock.
        waited = [block for block in blocks if WAITED in block.dirty]
        assert len(waited) < 0.5 * len(blocks), row.guards
    check_readings(quiet, blocks)


def check_readings(run: Run, blocks: Sequence[Block]) -> None:
    """Check that each block has the readings of controller and worker, or the reason for none."""
    states = run.launches()[0]["guards"]
    assert states["frequency probe"] == ""
    assert all(block.guard.probe_before_ns and block.guard.probe_after_ns for block in blocks)
    assert all(block.guard.probe_usual_ns for block in blocks)
    assert any(block.guard.probe_limit_ns for block in blocks) == (len(blocks) > 10)
    for name, field in (("swap", "swapped_pages"), ("temperature", "cpu_temperature_c")):
        unavailable = all(getattr(block.guard, field) is None for block in blocks)
        assert bool(states[name]) == unavailable, states[name]
    assert all((block.guard.watched_ns or 0) > block.wall_ns for block in blocks)

"""A whole sweep that reserves cores for timing, on the cores of this machine."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tiny_bench import bench, write_file
from torchyard.core.cpu_lists import cpu_list
from torchyard.machine.guards.block_check import SHARED_GPU
from torchyard.process.timing_turn import ReservedCoresTurn
from torchyard.results.run_reader import read_run
from torchyard.worker.device_turn import GATE, user_file

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_cells_are_timed_on_reserved_cores_one_at_a_time(tmp_path: Path) -> None:
    names = ("kernels/softmax", "kernels/layer-norm", "kernels/rms-norm")
    words = [word for name in names for word in ("--workload", name)]
    words += ["--null", "--time", "2s", "--at-most", "2", "--reserve-cores", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "torchyard", "sweep", *words, "--run-dir", str(tmp_path / "sweep")],
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    timed, preparing = CPUS[-1:], CPUS[:-1]
    assert done.returncode in (0, 6), done.stderr  # 6: untrusted, on a busy machine
    shown = f"timed on CPUs {cpu_list(tuple(timed))}, prepared on {cpu_list(tuple(preparing))}"
    assert shown in done.stderr
    blocks = []
    for cell in sorted((tmp_path / "sweep" / "cells").iterdir()):
        launches = records(cell / "run-1/launches.jsonl")
        assert launches
        for launch in launches:
            cores = {"timed": cpu_list(tuple(timed)), "preparing": cpu_list(tuple(preparing))}
            assert launch["cores"] == cores
        (target,) = json.loads((cell / "run-1/run.json").read_text())["targets"].values()
        assert target["threads"] == 1, "one thread for each reserved core"
        samples = [record["block"] for record in records(cell / "run-1/samples.jsonl")]
        assert not any(block["guard"]["other_gpu_processes"] for block in samples)
        blocks += [
            (cell.name, block["started_ns"], block["started_ns"] + block["wall_ns"])
            for block in samples
        ]
    assert len({name for name, _, _ in blocks}) == len(names)
    for one, other in combinations(blocks, 2):
        assert one[0] == other[0] or one[2] <= other[1] or other[2] <= one[1]
    assert not list((tmp_path / "sweep/turn/device").iterdir()), "no cell used a device"
    assert sorted(os.sched_getaffinity(0)) == CPUS


@pytest.mark.parametrize("is_used", [True, False])
def test_a_row_timed_beside_another_user_of_the_device_is_not_trusted(
    tmp_path: Path, is_used: bool
) -> None:
    """A process that ignores the gate: it begins to use the device as soon as timing has begun."""
    folder, ended = tmp_path / "turn", threading.Event()
    workload = write_file(
        tmp_path,
        "mine.py",
        """
        import torch
        def build(device):
            return torch.nn.Linear(64, 64), (torch.randn(32, 64),)
        """,
    )

    def use() -> None:
        with (folder / GATE).open("r+") as gate:
            while not ended.wait(0.001):
                try:
                    fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    break
                fcntl.flock(gate, fcntl.LOCK_UN)
        time.sleep(0.2)  # longer than it takes to see that nobody uses the device
        own = user_file(str(folder), os.getpid())
        with Path(own).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            ended.wait()

    turn = ReservedCoresTurn(folder, CPUS)
    user = threading.Thread(target=use)
    if is_used:
        user.start()
    try:
        (row,) = bench(tmp_path / "run", f"{workload}:build", turn=turn)
    finally:
        ended.set()
    if is_used:
        user.join()
    blocks = [block for _, block in read_run(tmp_path / "run").blocks()]
    assert blocks
    assert all((SHARED_GPU in block.dirty) is is_used for block in blocks)
    if is_used:
        assert any("others computed on the GPU" in text for text in row.untrusted)

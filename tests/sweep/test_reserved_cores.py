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
from tests.worker.toy_device import WORKLOAD, ToyMachine, toy_library
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
    completed = subprocess.run(
        [sys.executable, "-m", "torchyard", "sweep", *words, "--run-dir", str(tmp_path / "sweep")],
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    timed, preparing = CPUS[-1:], CPUS[:-1]
    assert completed.returncode in (0, 6), completed.stderr  # 6: untrusted, on a busy machine
    shown = f"timed on CPUs {cpu_list(tuple(timed))}, prepared on {cpu_list(tuple(preparing))}"
    assert shown in completed.stderr
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


class LockWatch(threading.Thread):
    """Records when a worker that is not stopped holds the device, with the times before and after looking."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._ended = threading.Event()
        self.uses: list[tuple[int, int]] = []

    def run(self) -> None:
        turn: ReservedCoresTurn | None = None
        while not self._ended.wait(0.01):
            if turn is None and (self._folder / GATE).exists():
                turn = ReservedCoresTurn(self._folder, CPUS[-1:])
            before_ns = time.monotonic_ns()
            if turn is not None and turn.device_users():
                self.uses.append((before_ns, time.monotonic_ns()))

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_no_cell_uses_the_accelerator_during_a_timed_block(tmp_path: Path) -> None:
    toy = ToyMachine(toy_library(tmp_path), tmp_path, TOY_KERNEL_NS="1000000")
    words = [f"{WORKLOAD}:{name}" for name in ("build", "trained")]
    words = [word for name in words for word in ("--workload", name)]
    words += ["--device", "toy", "--backends", "aot_eager", "--time", "3s", "--at-most", "2"]
    watch = LockWatch(tmp_path / "sweep/turn")
    watch.start()
    try:
        completed = toy.torchyard(
            "sweep", *words, "--reserve-cores", "1", "--run-dir", str(tmp_path / "sweep")
        )
    finally:
        watch.end()
    assert completed.returncode in (0, 6), completed.stderr
    assert watch.uses, "cells used the accelerator before and after timing"
    launches = [
        launch
        for cell in (tmp_path / "sweep/cells").iterdir()
        for launch in records(cell / "run-1/launches.jsonl")
    ]
    assert len({launch["workload"] for launch in launches}) == 2
    assert all("compilation" in {phase[0] for phase in one["phases"]} for one in launches)
    blocks = [
        (record["block"]["started_ns"], record["block"]["started_ns"] + record["block"]["wall_ns"])
        for cell in (tmp_path / "sweep/cells").iterdir()
        for record in records(cell / "run-1/samples.jsonl")
    ]
    assert blocks
    for began_ns, ended_ns in blocks:
        assert not any(began_ns < use[0] and use[1] < ended_ns for use in watch.uses)

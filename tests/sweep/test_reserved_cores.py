"""A whole sweep that reserves cores for timing, on the cores of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from torchyard.core.cpu_lists import cpu_list

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]


def test_cells_are_timed_on_reserved_cores_one_at_a_time(tmp_path: Path) -> None:
    names = ("kernels/softmax", "kernels/layer-norm", "kernels/gelu")
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
        launches = [json.loads(line) for line in (cell / "run-1/launches.jsonl").open()]
        assert launches
        for launch in launches:
            cores = {"timed": cpu_list(tuple(timed)), "preparing": cpu_list(tuple(preparing))}
            assert launch["cores"] == cores
        (target,) = json.loads((cell / "run-1/run.json").read_text())["targets"].values()
        assert target["threads"] == 1, "one thread for each reserved core"
        samples = [json.loads(line)["block"] for line in (cell / "run-1/samples.jsonl").open()]
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

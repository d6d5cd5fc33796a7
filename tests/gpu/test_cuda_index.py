"""CUDA devices by index: timing, synchronization and memory use the named device.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _device(index: int) -> str:
    import torch

    if torch.cuda.device_count() <= index:
        pytest.skip(f"this machine has no cuda:{index}")
    return f"cuda:{index}"


def _service(device: str, size: int = 4096) -> Any:
    from torchyard.worker.bench.service import WorkerService

    service = WorkerService()
    workload = {
        "suite": "kernels",
        "name": "matmul",
        "mode": "inference",
        "device": device,
        "batch_size": None,
        "optimizer_step": False,
        "parameters": [("size", size)],
    }
    service.build(workload, [{"name": "eager", "backend": "eager", "precision": "float32"}], 1337)
    service.warm("eager", 2.0)
    return service


@pytest.mark.parametrize("index", [0, 1])
def test_events_hold_the_whole_time_of_that_device(index: int) -> None:
    service = _service(_device(index))
    block = service.block("eager", 1, 30, 2, False, True)
    plain = service.block("eager", 1, 30, 2, False, False)
    # 137 GFLOP take far longer than their submission, which is all another device would show.
    assert min(block["samples_ns"]) > 1e5
    assert sum(plain["samples_ns"]) == pytest.approx(plain["wall_ns"], rel=0.05)


@pytest.mark.parametrize("index", [0, 1])
def test_memory_is_counted_on_that_device(index: int) -> None:
    found = _service(_device(index), size=2048).measure("eager")
    assert found["peak_memory_bytes"] == pytest.approx(2048 * 2048 * 4, rel=0.01)


def test_a_model_that_changes_the_current_device_is_timed_all_the_same() -> None:
    import torch

    service = _service(_device(1))
    side = service.runner("eager")
    multiply = side._function

    def strays(*args: Any) -> Any:
        result = multiply(*args)
        torch.cuda.set_device(0)
        return result

    side._function = strays
    block = service.block("eager", 1, 10, 2, False, False)
    assert min(block["samples_ns"]) > 1e5


def _bench(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(folder), "--json"]
    chosen = ["--only", "kernels/matmul:size=2048", "--candidate", "eager+tf32", "--time", "5s"]
    return subprocess.run(
        [*command, *chosen, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("index", [0, 1])
def test_a_whole_run_on_that_device(tmp_path: Path, index: int) -> None:
    done = _bench(tmp_path / "run", "--baseline", "eager", "--device", _device(index))
    assert done.returncode in {0, 6}, done.stderr
    (row,) = json.loads(done.stdout)["comparisons"]
    assert row["failure"] is None
    assert row["state"] in {"faster", "slower", "same", "undecided", "untrusted"}
    assert row["baseline_metrics"]["time_ns"] > 1e4


def test_an_index_that_is_not_there_ends_with_2_and_leaves_nothing(tmp_path: Path) -> None:
    done = _bench(tmp_path / "run", "--device", "cuda:99")
    assert done.returncode == 2, done.stderr
    assert "'cuda:99' is not visible to the target" in done.stderr + done.stdout
    assert not (tmp_path / "run").exists()


def test_a_hidden_device_is_not_there(tmp_path: Path) -> None:
    done = _bench(tmp_path / "run", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stderr

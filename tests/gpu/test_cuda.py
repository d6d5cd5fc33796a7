"""CUDA: events and the host clock, no synchronization inside blocks, L2 flush, clocks, runs.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _service(suite: str, name: str, mode: str = "inference", **parameters: object) -> Any:
    from torchyard.worker.bench.service import WorkerService

    service = WorkerService()
    workload = {
        "suite": suite,
        "name": name,
        "mode": mode,
        "device": "cuda",
        "batch_size": None,
        "optimizer_step": False,
        "parameters": list(parameters.items()),
    }
    service.build(workload, [{"name": "eager", "backend": "eager", "precision": "float32"}], 1337)
    service.warm("eager", 3.0)
    return service


def _bench(folder: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(folder), "--json"]
    done = subprocess.run(
        [*command, "--device", "cuda", *options], capture_output=True, text=True, check=False
    )
    print(done.stderr[-3000:])
    assert done.returncode in {0, 6}, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _blocks(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "samples.jsonl").read_text().splitlines()
    return [json.loads(line)["block"] for line in lines]


def test_events_agree_with_the_host_clock_on_long_kernels() -> None:
    # GIVEN kernels that keep the GPU busy all the time
    service = _service("kernels", "matmul", size=4096)
    # WHEN a block is timed by events
    block = service.block("eager", 1, 50, 2, False, False)
    # THEN the events add up to the host's wall time
    assert sum(block["samples_ns"]) == pytest.approx(block["wall_ns"], rel=0.05)


def test_nothing_synchronises_inside_a_block() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    service = _service("kernels", "layer-norm")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        service.block("eager", 1, 100, 1, False, False)
    waits = [e for e in profiler.events() if "Synchronize" in e.name]
    # one before the block, one at its end, and the profiler's own
    assert len(waits) < 10, [e.name for e in waits]
    assert torch.cuda.is_available()


def test_flushing_l2_slows_a_kernel_that_lives_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a delay of the same kind that leaves L2 alone: both hide the launch gap."""
    import torch

    from torchyard.worker.bench import timing

    def delay() -> None:
        torch.cuda._sleep(200_000)

    service = _service("kernels", "embedding")
    flushed = statistics.median(service.block("eager", 1, 200, 5, False, True)["samples_ns"])
    monkeypatch.setattr(timing.Flush, "__call__", lambda flush: delay())
    warm = statistics.median(service.block("eager", 1, 200, 5, False, True)["samples_ns"])
    print(f"L2 warm {warm:.0f} ns, flushed {flushed:.0f} ns")
    assert flushed > 1.05 * warm


def test_peak_memory_counts_what_an_iteration_adds() -> None:
    service = _service("kernels", "matmul", size=2048)
    measured = service.measure("eager")
    assert measured["peak_memory_bytes"] == pytest.approx(2048 * 2048 * 4, rel=0.01)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_eager_against_inductor(tmp_path: Path, mode: str) -> None:
    result = _bench(
        tmp_path / "run",
        "--only",
        "models/gpt",
        "--mode",
        mode,
        "--precision",
        "amp",
        "--candidate",
        "inductor",
        "--time",
        "20s",
    )
    (row,) = result["comparisons"]
    print(json.dumps(row["estimate"]), json.dumps(row["candidate_metrics"]))
    assert row["verdict"] in {"faster", "slower", "same", "undecided"}
    assert row["accuracy"]["status"] == "pass"
    assert row["candidate_metrics"]["compile_cold_s"] > 0
    assert row["candidate_metrics"]["peak_memory_bytes"] > 0


def test_the_same_code_is_not_called_different(tmp_path: Path) -> None:
    result = _bench(
        tmp_path / "run",
        *("--only", "kernels/matmul:size=4096", "--baseline", "eager", "--time", "30s"),
        *("--target", f"one={sys.executable}", "--target", f"two={sys.executable}"),
    )
    rows = result["comparisons"]
    print([(row["candidate"], row["verdict"], row["estimate"]) for row in rows])
    assert all(row["verdict"] in {"same", "undecided"} for row in rows)


def test_the_clock_is_read_beside_each_block(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    _bench(
        tmp_path / "run",
        *("--only", "kernels/matmul:size=4096", "--candidate", "eager+bfloat16", "--time", "8s"),
    )
    clocks = [block["guard"]["sm_clock_mhz"] for block in _blocks(tmp_path / "run")]
    print(f"SM clock {min(clocks)}-{max(clocks)} MHz over {len(clocks)} blocks")
    assert all(clock > 0 for clock in clocks)


def test_cuda_graphs(tmp_path: Path) -> None:
    result = _bench(
        tmp_path / "run",
        *("--only", "models/transformer-encoder", "--candidate", "inductor:reduce-overhead"),
        *("--time", "15s"),
    )
    (row,) = result["comparisons"]
    print(row["verdict"], row["estimate"]["speedup"], row["accuracy"])
    assert row["accuracy"]["status"] == "pass"

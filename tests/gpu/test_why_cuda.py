"""`torchyard why` on a GPU: GPU time by operator, generated kernels, CUDA graphs, idle gaps."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import write_file
from tests.worker.why.net import NET

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
ROOT = Path(__file__).parents[2]
LARGE_NET = (
    NET.replace("randn(8, 32)", "randn(2048, 1024)").replace("(32", "(1024").replace("32)", "1024)")
)
PROGRAM = (
    LARGE_NET
    + """
    import time

    def two_streams(module):
        def call(x):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                other = module(x)
            result = module(x)
            torch.cuda.current_stream().wait_stream(side)
            return result + other * 0.0
        return call

    def slower(module):
        def call(x):
            end = time.perf_counter() + 2e-3
            while time.perf_counter() < end:
                pass
            return module(x)
        return call
"""
)
SCRIPT = """
import json, sys
from torchyard.worker.bench.service import WorkerService
from torchyard.worker.why.service import attribution_of

program, backend, mode = sys.argv[1:]
service = WorkerService()
workload = {"suite": "file", "name": program + ":Net", "mode": mode, "device": "cuda",
            "batch_size": None, "optimizer_step": False, "parameters": []}
service.build(workload, [{"name": "one", "backend": backend, "precision": "float32"}], 1337)
attribution = attribution_of(service)
attribution.observe(0)
service.warm("one", 3.0)
why_not = attribution.sources("one")["kernels_why_not"]
blocks = [attribution.instrumented("one", 5) for _ in range(2)]
print(json.dumps({"why_not": why_not, "blocks": blocks}))
"""


def profiled(folder: Path, backend: str, mode: str = "inference") -> dict[str, Any]:
    program = write_file(folder, "net.py", PROGRAM)
    chosen = backend.replace("net.py", program)
    (folder / "cache").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, program, chosen, mode],
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps([(row[0], [unit[1] for unit in row[1]], row[2]) for row in rows(answer)]))
    return answer


def rows(answer: dict[str, Any]) -> list[Any]:
    return list(answer["blocks"][-1]["rows"])


def sources(answer: dict[str, Any], prefix: str) -> set[tuple[str, str, str]]:
    return {
        (unit[0], unit[1], unit[6])
        for name, units, *_ in rows(answer)
        if name.startswith(prefix)
        for unit in units
    }


def unknown_share(answer: dict[str, Any]) -> float:
    total = sum(row[2] for row in rows(answer))
    return float(sum(row[2] for row in rows(answer) if not row[1]) / total)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_operators_have_gpu_time(tmp_path: Path, mode: str) -> None:
    answer = profiled(tmp_path, "eager", mode)
    for block in answer["blocks"]:
        busy_ns = sum(row[2] for row in block["rows"])
        assert 0.0 < busy_ns <= block["iteration_ns"]
        assert not block["faulting"]
    assert ("forward", "blocks.*.up", "addmm") in sources(answer, "aten::addmm")
    assert ("forward", "blocks.*.norm", "native_layer_norm") in sources(answer, "aten::native")
    assert unknown_share(answer) < 0.05
    if mode == "training":
        assert ("backward", "blocks.*.up", "mm") in sources(answer, "aten::mm")


def test_concurrent_streams_fit_into_the_iteration(tmp_path: Path) -> None:
    answer = profiled(tmp_path, "net.py:two_streams")
    block = answer["blocks"][-1]
    assert sum(row[2] for row in block["rows"]) <= block["iteration_ns"]


@pytest.mark.parametrize("backend", ["inductor", "inductor:reduce-overhead"])
def test_generated_kernels_have_sources(tmp_path: Path, backend: str) -> None:
    for _ in range(2):  # compiled, then from the cache
        answer = profiled(tmp_path, backend)
        assert answer["why_not"] == ""
        assert ("forward", "blocks.*.norm", "native_layer_norm") in sources(answer, "triton_")
        assert ("forward", "blocks.*", "sigmoid") in sources(answer, "triton_")
        matrix = sources(answer, "aten::addmm") | sources(answer, "CUDA graph") | sources(
            answer, "aten::mm"
        )  # fmt: skip
        assert {one[2] for one in matrix} & {"addmm", "mm"}
        assert unknown_share(answer) < 0.1


def test_the_backward_graph(tmp_path: Path) -> None:
    answer = profiled(tmp_path, "inductor", "training")
    assert ("backward", "blocks.*.norm", "native_layer_norm_backward") in sources(answer, "triton_")
    assert unknown_share(answer) < 0.1


def test_host_time_becomes_idle_gaps(tmp_path: Path) -> None:
    program = write_file(tmp_path, "net.py", PROGRAM)
    environment = {
        **os.environ,
        "TORCHYARD_HOME": str(tmp_path / "home"),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }

    def torchyard(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "torchyard", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode in {0, 6}, done.stderr
        return done.stdout

    options = ("--device", "cuda", "--candidate", f"{program}:slower", "--time", "2s", "-q")
    torchyard("bench", f"{program}:Net", *options)
    result = json.loads(torchyard("why", "--launches", "3", "--seconds", "2", "--json", "-q"))
    attribution = result["attribution"]
    for side in ("baseline_ns", "candidate_ns"):
        total = math.fsum(part[side] for part in attribution["parts"])
        assert total == pytest.approx(attribution[side], rel=1e-6)
    first = attribution["parts"][0]
    assert first["kind"] == "idle"
    assert first["candidate_ns"] - first["baseline_ns"] == pytest.approx(2e6, rel=0.4)

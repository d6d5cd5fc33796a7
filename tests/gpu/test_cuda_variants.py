"""CUDA: backends and options specific to CUDA, memory of graphs, and energy.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _service(workload: str, *variants: dict[str, Any], **parameters: object) -> Any:
    from torchyard.worker.bench.service import WorkerService

    suite, name = workload.split("/")
    service = WorkerService()
    service.build(
        {
            "suite": suite,
            "name": name,
            "mode": "inference",
            "device": "cuda",
            "batch_size": None,
            "optimizer_step": False,
            "parameters": list(parameters.items()),
        },
        list(variants),
        1337,
    )
    return service


def _variant(name: str, backend: str = "eager", **options: Any) -> dict[str, Any]:
    chosen = [[key.replace("_", "-"), value] for key, value in options.items()]
    return {"name": name, "backend": backend, "precision": "float32", "options": chosen}


@pytest.mark.parametrize(
    "backend",
    ["aot_eager", "cudagraphs", "torchscript:freeze", "export", "inductor", "aot-inductor"],
)
def test_backends_compute_the_same(tmp_path: Path, backend: str) -> None:
    record = _checked_in_new_process(tmp_path, backend)
    assert record["status"] == "pass", record


def _checked_in_new_process(folder: Path, backend: str) -> dict[str, Any]:
    """Judge in a process of its own: a compiler that crashes must not end these tests."""
    answer = folder / "record.json"
    code = (
        "import json, sys, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.gpu.test_cuda_variants import _service, _variant\n"
        f"service = _service('models/transformer-encoder', _variant('a'), _variant('b', {backend!r}))\n"
        f"path = {str(folder / 'reference.pt')!r}\n"
        "service.reference('a', path)\n"
        f"pathlib.Path({str(answer)!r}).write_text(json.dumps(service.judge('b', path)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if "static copy of the C++ runtime" in done.stderr:
        pytest.skip("the compiler here links libstdc++ statically, which the backend refuses")
    # The answer counts: what crashes only while the interpreter ends has computed its results.
    assert answer.exists(), f"exit code {done.returncode}\n{done.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def test_a_backend_that_crashes_is_a_failed_row_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    backend = tmp_path / "crashes.py"
    backend.write_text(
        "import ctypes\ndef make(module, *args):\n    return lambda *a: ctypes.string_at(0)\n"
    )
    command = [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(tmp_path / "run")]
    chosen = ["--device", "cuda", "--only", "kernels/mlp", "--time", "5s", "--json"]
    sides = ["--baseline", "eager", "--candidate", f"{backend}:make", "--candidate", "inductor"]
    done = subprocess.run(
        [*command, *chosen, *sides], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode in {0, 6}, done.stderr
    bad, good = json.loads(done.stdout)["comparisons"]
    assert (bad["state"], bad["failure"]["kind"]) == ("failed", "crashed")
    assert good["failure"] is None


@pytest.mark.parametrize("backend", ["cudagraphs", "inductor:reduce-overhead"])
def test_memory_in_the_pool_of_a_graph_is_unavailable(backend: str) -> None:
    service = _service("kernels/mlp", _variant("a"), _variant("b", backend))
    for name in "ab":
        service.warm(name, 2.0)
    found = service.measure("b")
    assert found["peak_memory_bytes"] is None
    assert "CUDA graphs" in dict(found["unavailable"])["peak_memory_bytes"]
    assert service.measure("a")["peak_memory_bytes"] > 0


def test_tf32_applies_to_its_variant_only_and_its_error_is_measured(tmp_path: Path) -> None:
    # GIVEN products of 2048 numbers, exact and in TF32, in one process
    service = _service("kernels/matmul", _variant("a"), _variant("b", tf32=True), size=2048)
    path = str(tmp_path / "reference.pt")
    service.reference("a", path)
    # WHEN the second one is judged
    record = service.judge("b", path)
    # THEN it is right for what it is, its error is known, and the first one has not got it
    assert record["status"] == "pass"
    assert record["max_error"] > 1e-3
    again = service.judge("a", path)
    assert again["max_error"] == 0.0


def test_channels_last_is_right(tmp_path: Path) -> None:
    service = _service("models/resnet", _variant("a"), _variant("b", channels_last=True))
    service.reference("a", str(tmp_path / "reference.pt"))
    assert service.judge("b", str(tmp_path / "reference.pt"))["status"] == "pass"


def test_a_float64_copy_that_does_not_fit_the_card_is_not_made() -> None:
    import torch

    from torchyard.worker.bench.accuracy.reference import float64_results
    from torchyard.worker.bench.accuracy.tensors import to_plain

    side = _service("kernels/matmul", _variant("a"), size=8192).runner("a")
    found = to_plain(side.results(1)[0])
    assert float64_results(side, 1, found)[0] is not None
    # 1.5 GiB are left; two operands, a result and the copies of how they began need 2 or more
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (3 << 29), dtype=torch.uint8, device="cuda")
    exact, why_not = float64_results(side, 1, found)
    del held
    torch.cuda.empty_cache()  # later tests start processes of their own
    assert exact is None
    assert "a float64 copy needs about" in why_not or "OutOfMemory" in why_not


def test_energy_is_power_times_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(folder), "--json"]
    chosen = ["--device", "cuda", "--only", "kernels/matmul:size=4096", "--candidate", "tf32"]
    done = subprocess.run(
        [*command, *chosen, "--baseline", "eager", "--time", "5s"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 6}, done.stderr
    (row,) = json.loads(done.stdout)["comparisons"]
    side = row["baseline_metrics"]
    if side["energy_j"] is None:
        pytest.skip(dict(side["unavailable"])["energy_j"])
    watts = side["energy_j"] * 1e9 / side["time_ns"]
    assert 50 < watts < 1200
    assert any("tf32 reduces precision" in note for note in row["notes"])

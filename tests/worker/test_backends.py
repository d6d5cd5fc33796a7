"""Backends: each computes the same results, or gives a reason why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.bench.backend_names import BACKENDS
from torchyard.worker.bench.backends import has_static_cpp_runtime, load_without_compile_processes
from torchyard.worker.workload import CannotBuild

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(torch.relu(self.conv(x)).mean((2, 3)))

        def example_inputs(self, batch_size=4):
            return (torch.randn(batch_size, 3, 8, 8),)

        def loss(self, output):
            return output.sum()
"""
QUICK = ("aot_eager", "torchscript", "torchscript:script", "torchscript:freeze", "export")
SLOW = ("inductor", "aot-inductor", "inductor:max-autotune-no-cudagraphs")


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


def checked(folder: Path, code: str, backend: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    service = make_service(code, variant("a"), variant("b", backend, **options))
    path = str(folder / "reference.pt")
    service.reference("a", path)
    return service, service.judge("b", path)


@pytest.mark.parametrize(
    ("stored", "own", "expected"), [(True, None, 1), (True, "3", 7), (False, None, 7)]
)
def test_compile_processes_are_left_out_where_artifacts_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, own: str | None, expected: int
) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", own or "")
    if own is None:
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    if stored:
        (tmp_path / "fxgraph").mkdir()
    with config.patch(compile_threads=7):
        load_without_compile_processes()
        assert config.compile_threads == expected
    assert os.environ.get("TORCHINDUCTOR_COMPILE_THREADS") == (
        "1" if expected == 1 else own
    )  # read by an inductor that is imported later


@pytest.mark.parametrize("backend", QUICK)
def test_a_backend_computes_the_same(tmp_path: Path, net: str, backend: str) -> None:
    service, record = checked(tmp_path, net, backend)
    assert record["status"] == "pass", record
    assert service.runner("b").function is not service.runner("a").function


@pytest.mark.slow
@pytest.mark.parametrize("backend", SLOW)
def test_a_compiler_computes_the_same(tmp_path: Path, net: str, backend: str) -> None:
    _, record = checked(tmp_path, net, backend)
    assert record["status"] == "pass", record


@pytest.mark.parametrize("backend", ["torchscript", "torchscript:freeze", "export", "aot-inductor"])
def test_inference_only_backends_reject_training(net: str, backend: str) -> None:
    service = make_service(net, variant("a"), variant("b", backend), mode="training")
    service.runner("a").first_call()
    with pytest.raises(CannotBuild, match="supports inference only"):
        service.warm("b", 0.1)


@pytest.mark.parametrize("backend", ["torchscript:freeze", "aot-inductor"])
def test_backends_that_copy_parameters_reject_mutating_workloads(backend: str) -> None:
    service = make_service("kernels/optimizer-step", variant("b", backend))
    with pytest.raises(CannotBuild, match="copies the parameters"):
        service.warm("b", 0.1)


def test_cudagraphs_need_a_gpu(net: str) -> None:
    with pytest.raises(CannotBuild, match="requires a CUDA device"):
        make_service(net, variant("b", "cudagraphs")).warm("b", 0.1)


def test_making_it_ahead_is_part_of_the_first_call(net: str, tmp_path: Path) -> None:
    slow = "import time\ndef make(module):\n    time.sleep(0.3)\n    return module\n"
    backend = write_file(tmp_path, "slow.py", slow) + ":make"
    runner = make_service(net, variant("b", backend)).runner("b")
    runner.first_call()
    assert runner.first_call_s >= 0.3


def test_a_trace_of_named_inputs(tmp_path: Path) -> None:
    code = """
        import torch
        class Net(torch.nn.Module):
            def forward(self, left, right):
                return {"sum": left + right}
        def make():
            return Net(), {"left": torch.ones(3), "right": torch.ones(3)}
    """
    _, record = checked(tmp_path, write_file(tmp_path, "named.py", code), "torchscript")
    assert record["status"] == "pass", record


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_worker_accepts_every_backend_name(net: str, backend: str) -> None:
    service = make_service(net, variant("b", backend))
    if backend != "cudagraphs":
        assert service.runner("b").backend == backend


@pytest.mark.parametrize("backend", ["export:fast", "aot-inductor:x", "torchscript:fast"])
def test_unknown_backend_mode_is_rejected(net: str, backend: str) -> None:
    with pytest.raises(CannotBuild, match="has no"):
        make_service(net, variant("b", backend)).runner("b")


def test_variants_with_equal_backends_are_compiled_separately(net: str) -> None:
    """Dynamo would hand the first one's code to the second, whatever its settings are."""
    service = make_service(
        net,
        variant("a", "aot_eager"),
        variant("b", "aot_eager"),
        variant("c", "aot_eager", no_onednn=True),
    )
    for name in "abc":
        assert service.measure(name)["graphs"] == 1


def test_many_variants_of_one_module_are_all_compiled(net: str) -> None:
    """Dynamo stops at eight pieces of code for one source, and would run the ninth uncompiled."""
    names = [f"side {index}" for index in range(10)]
    service = make_service(net, *(variant(name, "dynamo:eager") for name in names))
    for name in names:
        service.runner(name).first_call()
        assert service.runner(name).graph_counters["graphs"] == 1, name


@pytest.mark.parametrize(
    ("option", "static"), [("-shared-libgcc", False), ("-static-libstdc++", True)]
)
def test_a_library_with_its_own_copy_of_the_cpp_runtime_is_recognised(
    tmp_path: Path, option: str, static: bool
) -> None:
    source, library = tmp_path / "device.cpp", tmp_path / "device.so"
    source.write_text(
        """
        #include <regex>
        extern "C" bool is_device(const char* name) {
            return std::regex_match(std::string(name), std::regex("(cpu|cuda)(:([0-9]+))?"));
        }
        """
    )
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    subprocess.run([compiler, "-shared", "-fPIC", option, source, "-o", library], check=True)
    assert has_static_cpp_runtime(library.read_bytes()) is static

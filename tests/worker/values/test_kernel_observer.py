"""Observation of generated kernels: late starts, restored modules, threads, exceptions, other versions of torch."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters

from torchyard.worker.values.compiled.kernel_observer import NO_MODULE
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession

pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SIZE = 128


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start with an empty cache of the compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def _code_cache() -> Any:
    from torch._inductor import codecache

    return codecache.PyCodeCache


def _session() -> ProfilingSession:
    return ProfilingSession(Options(prove=False))


def _constant(x: Tensor) -> Tensor:
    return torch.sigmoid(x + 200)


def constant(x: Tensor) -> Tensor:
    """Return ones, computed by compiled code."""
    return _compiled()(x)


@functools.cache
def _compiled() -> Callable[[Tensor], Tensor]:
    compiled: Callable[[Tensor], Tensor] = torch.compile(_constant)
    return compiled


def test_code_compiled_before_is_covered_without_a_recompilation() -> None:
    torch._dynamo.reset()
    x = torch.randn(SIZE, SIZE)
    expected = constant(x)
    counters.clear()
    session = _session()
    session.start()
    for _ in range(3):
        assert torch.equal(constant(x), expected)
    session.stop()
    (finding,) = session.findings.all()
    assert (finding.pattern, finding.count) == ("single value", 3)
    assert finding.operator.startswith("inductor::cpp_fused_add_sigmoid")
    assert finding.place.file == __file__
    (note,) = [note for note in session._all_notes() if "without source lines" in note]
    assert "compiled before the profile" in note
    assert counters["stats"]["unique_graphs"] == 0


def test_torch_and_the_generated_modules_are_restored() -> None:
    loader = _code_cache().__dict__["load_by_key_path"]
    session = _session()
    session.start()
    constant(torch.randn(SIZE, SIZE))
    assert _code_cache().__dict__["load_by_key_path"] is not loader
    modules = [module for module in _code_cache().modules if hasattr(module, "call")]
    kernels = [name for module in modules for name in vars(module) if name.startswith("cpp_fused")]
    assert kernels
    session.stop()
    assert _code_cache().__dict__["load_by_key_path"] is loader
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("cpp_fused"):
                assert type(value) is type(len), "the generated function itself"
    calls = session.kernels.calls
    constant(torch.randn(SIZE, SIZE))
    assert session.kernels.calls == calls


def test_kernels_of_other_threads_are_counted_and_not_examined() -> None:
    constant(torch.randn(SIZE, SIZE))
    session = _session()
    session.start()
    threads = [
        threading.Thread(target=lambda: [constant(torch.randn(SIZE, SIZE)) for _ in range(5)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.stop()
    assert session.findings.all() == []
    assert session.kernels.counts()["kernel_calls_elsewhere"] == 15


def test_an_exception_of_a_kernel_reaches_the_program_and_the_profile_goes_on() -> None:
    @torch.compile
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return x.sin()[index] * 0.0 + 1.0

    session = _session()
    session.start()
    x = torch.randn(SIZE, SIZE)
    pick(x, torch.arange(SIZE))
    with pytest.raises((IndexError, RuntimeError)):
        pick(x, torch.full((SIZE,), SIZE + 1))
    for _ in range(3):
        pick(x, torch.arange(SIZE))
    session.stop()
    assert session.kernels.why_not == ""
    assert session.mode.off is False
    assert [finding.pattern for finding in session.findings.all()] == ["single value"]


def test_recompilations_and_dynamic_shapes_are_one_finding() -> None:
    @torch.compile
    def f(x: Tensor) -> Tensor:
        return torch.sigmoid(x.cos() + 300)

    session = _session()
    session.start()
    for length in (100, 120, 140, 160):
        f(torch.randn(length, SIZE))
    session.stop()
    (finding,) = session.findings.all()
    assert finding.count == 4
    assert session.kernels.counts()["kernels"] == 2  # a static graph, then a dynamic one


def test_a_graph_without_python_is_listed() -> None:
    @torch.compile(options={"cpp_wrapper": True})
    def f(x: Tensor) -> Tensor:
        return torch.sigmoid(x.tan() + 300)

    session = _session()
    session.start()
    f(torch.randn(SIZE, SIZE))
    session.stop()
    assert session.findings.all() == []
    assert any("C++ wrapper" in note for note in session._all_notes())


def test_another_way_to_load_code_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_code_cache(), "load_by_key_path")
    session = _session()
    session.start()
    session.stop()
    (note,) = [note for note in session._all_notes() if "not examined" in note]
    assert torch.__version__ in note


def test_a_graph_of_an_unknown_module_invalidates_what_is_known_of_memory() -> None:
    constant(torch.randn(SIZE, SIZE))
    session = _session()
    session.start()
    session.kernels._modules.clear()  # as if it had been loaded in another way
    epoch = session.mode.storages.epoch
    constant(torch.randn(SIZE, SIZE))
    session.stop()
    assert session.mode.storages.epoch > epoch
    assert any(NO_MODULE in note for note in session._all_notes())


def test_an_error_of_the_observer_does_not_reach_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(SIZE, SIZE)
    expected = constant(x)
    session = _session()
    session.start()

    def fail(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(session.mode, "before_kernel", fail)
    assert torch.equal(constant(x), expected)
    assert torch.equal(constant(x), expected)
    session.stop()
    assert session.kernels.why_not == "ValueError: broken"
    assert any("not examined: ValueError: broken" in note for note in session._all_notes())


def test_an_eager_program_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from torchyard.worker.values.exchange import Options\n"
        "from torchyard.worker.values.profiling_session import ProfilingSession\n"
        "session = ProfilingSession(Options(prove=False))\n"
        "session.start()\n"
        "torch.randn(100, 100).sin()\n"
        "session.stop()\n"
        "print('torch._inductor.codecache' in sys.modules, len(sys.meta_path))\n"
        "print(len([one for one in sys.meta_path if 'torchyard' in type(one).__module__]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split()[0] == "False"
    assert ran.stdout.split()[-1] == "0"


def test_the_profiler_is_not_compiled_between_two_graphs() -> None:
    torch._dynamo.reset()
    frames: list[str] = []

    def compiler(graph: Any, _inputs: Any) -> Any:
        frames.append(str(graph.graph))
        return graph

    @torch.compile(backend=compiler)
    def counted(x: Tensor) -> Tensor:
        rows = (x * 2).argmax(-1)
        return torch.bincount(rows, minlength=SIZE) + 1  # its size depends on values: no graph

    x = torch.randn(SIZE, SIZE)
    expected = counted(x)
    plain, frames = frames, []
    torch._dynamo.reset()
    counters.clear()
    session = _session()
    session.start()
    try:
        for _ in range(3):
            assert torch.equal(counted(x), expected)
    finally:
        session.stop()
    assert frames == plain
    assert not any("torchyard" in reason for reason in counters["graph_break"])

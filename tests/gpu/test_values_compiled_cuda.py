"""Compiled code on a GPU: buffers of Triton kernels are observed like those of C++ kernels."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor

from torchyard.worker.values.compiled.cuda_graphs import CUDA_GRAPHS
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
SIZE = 512


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start with an empty cache of the compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def _data() -> Tensor:
    return torch.randn(SIZE, SIZE, device="cuda")


def _profile(body: Callable[[], object]) -> ProfilingSession:
    torch._dynamo.reset()
    session = ProfilingSession(Options(prove=False))
    session.start()
    try:
        for _ in range(3):
            body()
        torch.cuda.synchronize()
    finally:
        session.stop()
    assert session.kernels.why_not == ""
    return session


def _patterns(session: ProfilingSession) -> list[str]:
    return [finding.pattern for finding in session.findings.all()]


def test_a_constant_buffer_is_found_with_its_operator_and_line() -> None:
    @torch.compile
    def f(x: Tensor) -> Tensor:
        return torch.sigmoid(x + 200)

    session = _profile(lambda: f(_data()))
    assert _patterns(session) == ["single value"]
    (finding,) = session.findings.all()
    assert finding.operator == "inductor::triton_poi_fused_add_sigmoid_0 (add, sigmoid)"
    assert finding.place.file == __file__
    assert session.kernels.counts()["kernel_calls"] == 3


def test_a_buffer_that_another_kernel_overwrites_is_found() -> None:
    @torch.compile
    def first(out: Tensor, x: Tensor) -> None:
        out.copy_(x.sin() * 2)

    @torch.compile
    def second(out: Tensor, x: Tensor) -> None:
        out.copy_(x.cos())

    out = _data()

    def body() -> None:
        first(out, _data())
        second(out, _data())
        float(out.sum())

    assert _patterns(_profile(body)) == ["dead initialisation"]


def test_two_buffers_with_the_same_bits_are_found() -> None:
    @torch.compile
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x)
        return y * 2, y + y

    assert _patterns(_profile(lambda: f(_data()))) == ["duplicate"]


def test_training_with_reused_buffers_is_clean() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(SIZE, SIZE),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.LayerNorm(SIZE),
        torch.nn.Linear(SIZE, SIZE),
    ).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def body() -> None:
        optimizer.zero_grad()
        compiled(_data()).square().mean().backward()
        optimizer.step()

    session = _profile(body)
    assert _patterns(session) == []
    assert session.kernels.counts()["kernel_buffers"] > 0


def test_results_are_the_same_with_and_without_the_profiler() -> None:
    @torch.compile
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.dropout(torch.softmax(x @ w, -1), 0.3) + x.sin()

    x, w = _data(), _data()
    torch.manual_seed(3)
    expected = f(x, w)
    results: list[Tensor] = []
    session = ProfilingSession(Options(prove=False))
    session.start()
    torch.manual_seed(3)
    results.append(f(x, w))
    session.stop()
    assert torch.equal(results[0], expected)


def test_cuda_graphs_are_listed_as_not_examined() -> None:
    @torch.compile(mode="reduce-overhead")
    def f(x: Tensor) -> Tensor:
        return torch.sigmoid(x.tan() + 200)

    session = _profile(lambda: f(_data()).clone())
    assert any(CUDA_GRAPHS in note for note in session._all_notes())


def test_a_graph_of_the_program_is_captured_and_nothing_is_concluded_from_old_contents() -> None:
    given, result = torch.zeros(SIZE, SIZE, device="cuda"), torch.zeros(SIZE, SIZE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    result.copy_(given.tan())
    torch.cuda.synchronize()
    session = ProfilingSession(Options(prove=False))
    session.start()
    with torch.cuda.graph(graph):
        result.copy_(given.tan())
    for _ in range(3):
        given.copy_(_data())  # read by the replay, not a dead write
        graph.replay()
        given.copy_(_data())
        graph.replay()
        float(result.sum())
    session.stop()
    assert _patterns(session) == []
    assert any(CUDA_GRAPHS in note for note in session._all_notes())

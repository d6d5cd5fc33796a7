"""Comparisons in this process: verdicts, scope, accuracy, and the state of the caller."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import torchyard
from torchyard.api.result import THIS_PROCESS
from torchyard.errors import UsageError

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SHORT = "150ms"
QUIET = {"faster", "slower", "same", "undecided"}


def double(x: Any) -> Any:
    return x + x


def times_two(x: Any) -> Any:
    return x * 2


def compare(baseline: Any, candidate: Any, *inputs: Any, **options: Any) -> torchyard.Comparison:
    return torchyard.compare(
        baseline, candidate, inputs, **{"time": SHORT, "processes": False, **options}
    )


@pytest.mark.parametrize(("repeats", "most"), [(3, 2), pytest.param(10, 3, marks=pytest.mark.slow)])
def test_identical_code_is_not_called_different(repeats: int, most: int) -> None:
    # The callables are short: any difference in how the two are called would show.
    x = torch.randn(16)
    results = [compare(lambda x: x + x, lambda x: x + x, x) for _ in range(repeats)]
    assert not [one for one in results if one.verdict == "wrong"]
    # Also where a noisy machine hides the verdict. With an error rate of 5 %, three false alarms in
    # three have a probability of 0.01 %, and four in ten of 0.1 %.
    verdicts = [one.result.estimate.verdict for one in results if one.result.estimate]
    assert sum(verdict in {"faster", "slower"} for verdict in verdicts) <= most, results


def test_more_work_is_slower() -> None:
    x = torch.randn(4096)  # one thread

    def repeated(x: Any) -> Any:
        for _ in range(3):
            x.sin()
        return x.sin()

    result = compare(torch.sin, repeated, x, time="600ms")
    assert result.verdict in {"slower", "untrusted"}
    assert result.speedup is not None
    assert result.verdict == "untrusted" or 0.05 < result.speedup < 0.7
    assert result.interval is not None
    assert result.interval[0] <= result.speedup <= result.interval[1]
    assert result.baseline_s is not None
    assert result.candidate_s is not None
    assert result.baseline_s / result.candidate_s == pytest.approx(result.speedup)
    assert result.trusted == (result.verdict in QUIET)


def test_the_scope_is_stated_everywhere() -> None:
    result = compare(double, times_two, torch.randn(16))
    assert result.scope == THIS_PROCESS == "this process only"
    assert result.run is None
    for text in (repr(result), result.report(), result._repr_html_()):
        assert "this process only" in text
    assert "a single launch is valid for its own processes only" in result.notes
    assert result.accuracy.startswith("pass")


def test_a_closure_is_measured_here_and_the_reason_is_stated() -> None:
    weight = torch.randn(16, 16)
    result = compare(
        lambda x: x @ weight, lambda x: torch.mm(x, weight), torch.randn(4, 16), processes=True
    )
    assert result.scope == "this process only"
    assert any("lambda or is defined in a function" in note for note in result.notes)


@pytest.mark.parametrize(
    "candidate",
    [
        lambda x: x * 2 + 0.1,
        pytest.param(lambda x: (x * 2).to(torch.bfloat16).to(x.dtype), marks=pytest.mark.slow),
        pytest.param(lambda x: (x * 2)[:-1], marks=pytest.mark.slow),
        pytest.param(lambda x: [x * 2], marks=pytest.mark.slow),
        lambda x: x.mul_(2),
        lambda x, kept=[]: kept.append(x * 2) or kept[0],
    ],
    ids=["offset", "precision", "shape", "container", "writes the input", "cached"],
)
def test_wrong_results_are_called_wrong(candidate: Any) -> None:
    result = compare(double, candidate, torch.randn(32))
    assert result.verdict == "wrong"
    assert "the speedup does not count" in " ".join(result.notes)


def test_results_without_tensors_are_not_called_correct() -> None:
    result = compare(lambda: 1, lambda: 1)
    assert result.verdict == "untrusted"
    assert "not checked" in result.accuracy


def test_exceptions_propagate() -> None:
    def broken(x: Any) -> Any:
        raise ValueError("the message of the candidate")

    with pytest.raises(ValueError, match="the message of the candidate"):
        compare(double, broken, torch.randn(4))


def test_an_interrupt_propagates() -> None:
    calls = 0

    def interrupted(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise KeyboardInterrupt
        return x * 2

    x = torch.randn(4)
    before = x.clone()
    with pytest.raises(KeyboardInterrupt):
        compare(double, interrupted, x)
    assert torch.equal(x, before)
    assert gc.isenabled()


def test_the_state_of_the_caller_is_unchanged() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
    other = torch.nn.Sequential(*net)
    x = torch.randn(4, 8)
    net(x).sum().backward()
    gradient = net[0].weight.grad.clone()
    weights = net[0].weight.detach().clone()
    kept, generator = x.clone(), torch.get_rng_state()
    result = compare(net, other, x)
    assert result.verdict in {*QUIET, "untrusted"}, result.notes
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(net[0].weight.grad, gradient)
    assert torch.equal(net[0].weight, weights)
    assert torch.equal(x, kept)
    assert net.training
    assert net[1].training
    assert torch.is_grad_enabled()


def test_modules_with_weights_of_their_own_are_not_called_wrong() -> None:
    import copy

    net = torch.nn.Linear(8, 8)
    result = compare(net, copy.deepcopy(net), torch.randn(4, 8))
    assert result.verdict != "wrong", result.notes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_backend_applies_to_the_other_argument() -> None:
    net = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8)
    result = compare(net, "aot_eager", x)
    assert (result.baseline, result.candidate) == ("Linear", "aot_eager")
    assert result.accuracy.startswith("pass")
    compiled = torch.compile(net, backend="aot_eager")
    assert compare(compiled, "eager", x, processes=True).scope == "this process only"


def test_inputs_are_copied_with_their_layout() -> None:
    from torchyard.worker.bench.this_process import arguments_of

    x = torch.randn(6, 8)
    batch = SimpleNamespace(x=x)
    views = [x, x[:, ::2], x.t(), x[:1].expand(4, 8)]
    arguments = arguments_of((*views, x, batch, 3))
    assert arguments is not None
    copies = arguments[0]
    for view, copy in zip(views, copies, strict=False):
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
    assert copies[0] is copies[4]
    assert copies[0].data_ptr() != x.data_ptr()
    assert copies[5].x.data_ptr() != x.data_ptr()
    assert copies[6] == 3


def test_keyword_inputs() -> None:
    result = torchyard.compare(
        double, times_two, {"x": torch.randn(8)}, time=SHORT, processes=False
    )
    assert result.accuracy.startswith("pass")


def test_eager_of_a_function_is_the_function_itself() -> None:
    result = compare("eager", double, torch.randn(16))
    assert result.result.estimate is not None
    assert result.speedup == pytest.approx(1.0, abs=0.5)
    assert (result.baseline, result.candidate) == ("eager", "double")


@pytest.mark.parametrize("results", [(), ("cpu",), ("cuda",)])
def test_the_device_of_a_closure(monkeypatch: pytest.MonkeyPatch, results: tuple[str, ...]) -> None:
    from torchyard.worker import devices
    from torchyard.worker.bench import this_process

    class OnGpu:
        device = torch.device("cuda", 1)

    monkeypatch.setattr(devices._torch_cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices._torch_cuda, "current_device", lambda: 2)
    outputs = [torch.zeros(1) if name == "cpu" else OnGpu() for name in results]
    monkeypatch.setattr(this_process, "flatten", lambda value: outputs if value is outputs else [])
    monkeypatch.setattr(devices._torch_cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(this_process, "RandomState", lambda: SimpleNamespace(restore=lambda: False))
    device = this_process.device_of([], lambda: outputs, ())
    assert device == {(): "cuda:2", ("cpu",): "cpu", ("cuda",): "cuda:1"}[results]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eager", "inductor"), "no model"),
        ((double, 3), "candidate has the type int"),
        ((double, "inductr"), "inductr"),
        ((double, "inductor+channels-last"), "fresh processes"),
    ],
)
def test_usage_errors(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(*arguments, torch.randn(4))


def test_inputs_must_be_arguments() -> None:
    with pytest.raises(UsageError, match="inputs has the type int"):
        torchyard.compare(double, times_two, 3)
    with pytest.raises(UsageError, match="positive duration"):
        torchyard.compare(double, times_two, (), time=0)


def test_measure() -> None:
    x = torch.randn(64)
    kept = x.clone()
    result = torchyard.measure(torch.Tensor.add_, x, 1, time="200ms")
    assert 0 < result.median_s < 1e-3
    assert result.quartiles_s[0] <= result.median_s <= result.quartiles_s[1]
    assert result.iqr_s >= 0
    assert result.calls == len(result.times_s) * result.calls_per_time > 100
    assert torch.equal(x, kept)
    for text in (repr(result), result._repr_html_()):
        assert "this process only" in text
    with pytest.raises(ZeroDivisionError):
        torchyard.measure(lambda: 1 / 0)


def test_importing_torchyard_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, torchyard; sys.exit(bool({'torch', 'numpy', 'torchyard.api'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys, torchyard; torchyard.read_run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

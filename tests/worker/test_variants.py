"""Variants: what is shared, what is copied, and the effects of one iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.norm = nn.BatchNorm1d(16)
            self.second = nn.Linear(16, 4)

        def forward(self, x):
            return self.second(torch.relu(self.norm(self.first(x))))

        def example_inputs(self):
            return (torch.randn(8, 16),)

        def loss(self, output):
            return output.square().mean()

        def optimizer(self, parameters):
            return torch.optim.Adam(parameters, lr=0.01)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET)


def test_variants_of_one_precision_share_module_and_inputs(net: str) -> None:
    service = make_service(
        net, variant("a"), variant("b", "aot_eager"), variant("c", precision="amp")
    )
    a, b, c = (service.runner(name) for name in "abc")
    assert a.function is a.model.module
    assert a.model is b.model is c.model
    assert b.function is not a.function


def test_another_precision_is_a_copy_with_the_same_numbers(net: str) -> None:
    import torch

    service = make_service(net, variant("a"), variant("half", precision="bfloat16"))
    one, half = service.runner("a").model, service.runner("half").model
    assert one.module is not half.module
    assert {p.dtype for p in half.module.parameters()} == {torch.bfloat16}
    assert half.args[0].dtype is torch.bfloat16
    assert {p.dtype for p in one.module.parameters()} == {torch.float32}
    for left, right in zip(one.module.parameters(), half.module.parameters(), strict=True):
        assert torch.equal(left.bfloat16(), right)


def test_integer_inputs_keep_their_type_in_another_precision(tmp_path: Path) -> None:
    import torch

    code = """
        import torch
        def make():
            return torch.nn.Embedding(10, 4), torch.arange(6)
    """
    service = make_service(write_file(tmp_path, "e.py", code), variant("h", precision="float16"))
    assert service.runner("h").model.args[0].dtype is torch.int64


def test_amp_computes_products_in_half_precision(net: str) -> None:
    import torch

    service = make_service(net, variant("a"), variant("amp", precision="amp"))
    outputs = {name: service.runner(name).results(1)[0]["output"][0] for name in ("a", "amp")}
    assert outputs["a"].dtype is torch.float32
    assert outputs["amp"].dtype is torch.bfloat16


def test_inference_keeps_no_graph(net: str) -> None:
    runner = make_service(net).runner("eager")
    assert not runner.model.module.training
    with runner.context():
        assert not runner.caller()().requires_grad


def test_training_without_step_gives_gradients_and_keeps_the_parameters(net: str) -> None:
    import torch

    runner = make_service(net, mode="training").runner("eager")
    before = [p.detach().clone() for p in runner.model.parameters]
    with runner.context():
        runner.caller()()
    assert runner.model.module.training
    assert all(p.grad is not None for p in runner.model.parameters)
    assert all(torch.equal(x, y) for x, y in zip(before, runner.model.parameters, strict=True))
    runner.model.forget_gradients()
    assert all(p.grad is None for p in runner.model.parameters)


def test_rewind_undoes_the_optimizer_step(net: str) -> None:
    import torch

    runner = make_service(net, mode="training", step=True).runner("eager")
    before = [t.detach().clone() for t in runner.model.state()]
    for _ in range(3):
        with runner.context():
            runner.caller()()
    assert not any(torch.equal(x, p) for x, p in zip(before, runner.model.parameters, strict=False))
    assert int(runner.model.module.norm.num_batches_tracked) >= 3
    runner.model.rewind()
    assert all(torch.equal(x, y) for x, y in zip(before, runner.model.state(), strict=True))
    assert all(p.grad is None for p in runner.model.parameters)


def test_results_do_not_depend_on_what_ran_before(net: str) -> None:
    import torch

    runner = make_service(net, mode="training", step=True).runner("eager")
    first, _ = runner.results(5)
    for _ in range(5):
        with runner.context():
            runner.caller()()
    second, _ = runner.results(5)
    assert set(first) == {"output", "loss", "gradient", "buffer", "parameter"}
    for group in first:
        assert first[group]
        assert all(torch.equal(x, y) for x, y in zip(first[group], second[group], strict=True))


def test_a_module_that_writes_to_its_input_is_checked_from_the_beginning(tmp_path: Path) -> None:
    code = """
        import torch
        def grow(x):
            x.mul_(2)
            return x + 0
        def make():
            return grow, torch.ones(4)
    """
    path = write_file(tmp_path, "grow.py", code)
    service = make_service(path, variant("a"), variant("b", "aot_eager"))
    service.reference("a", str(tmp_path / "reference.pt"))
    record = service.judge("b", str(tmp_path / "reference.pt"))
    assert (record["status"], record["nondeterminism"]) == ("pass", 0.0)
    runner = service.runner("a")
    with runner.context():
        assert runner.caller()().tolist() == [2.0] * 4


def test_gradients_of_inputs_are_dropped_and_compared(tmp_path: Path) -> None:
    code = """
        import torch
        def make():
            x = torch.randn(3, 4, requires_grad=True)
            return torch.nn.Linear(4, 2), x, lambda output: output.sum()
    """
    runner = make_service(write_file(tmp_path, "i.py", code), mode="training").runner("eager")
    assert len(runner.results(1)[0]["gradient"]) == 3
    assert runner.model.args[0].grad is None


def test_expanded_inputs_are_left_alone(tmp_path: Path) -> None:
    code = """
        import torch
        def make():
            return torch.nn.Linear(4, 4), torch.ones(1, 4).expand(5, 4)
    """
    runner = make_service(write_file(tmp_path, "x.py", code)).runner("eager")
    runner.model.rewind()
    assert runner.results(1)[0]["output"][0].shape == (5, 4)


def test_the_first_call_is_timed_once_and_counts_graphs(net: str) -> None:
    service = make_service(net, variant("a"), variant("b", "dynamo:eager"))
    a, b = service.runner("a"), service.runner("b")
    for runner in (a, b):
        runner.first_call()
    assert b.first_call_s > 10 * a.first_call_s
    assert a.graph_counters == {"graphs": None, "graph_breaks": []}
    assert b.graph_counters == {"graphs": 1, "graph_breaks": []}
    before = b.first_call_s
    b.first_call()
    assert b.first_call_s == before


def test_compiled_variants_of_one_module_are_compiled_separately(net: str) -> None:
    service = make_service(net, variant("a", "dynamo:eager"), variant("b", "aot_eager"))
    for name in "ab":
        assert service.measure(name)["graphs"] == 1


def test_graph_breaks_come_with_reason_and_line(tmp_path: Path) -> None:
    code = """
        import torch
        class Branch(torch.nn.Module):
            def forward(self, x):
                if x.sum() > 0:
                    x = x + 1
                print("between", end="")
                return x * 2
        def make():
            return Branch(), torch.ones(8)
    """
    service = make_service(write_file(tmp_path, "branch.py", code), variant("a", "dynamo:eager"))
    metrics = service.measure("a")
    assert metrics["graphs"] == 3
    (branch, times), (printed, _) = metrics["graph_breaks"]
    assert (branch, times) == ("data-dependent branch (branch.py:5)", 1)
    assert printed.endswith("(branch.py:7)")
    assert "\n" not in printed


def test_no_loss_and_no_variant_are_refused_with_a_hint(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(4)\n"
    path = write_file(tmp_path, "plain.py", code)
    with pytest.raises(CannotBuild) as caught:
        make_service(path, mode="training")
    assert caught.value.hint
    with pytest.raises(CannotBuild, match="the variant 'other' was not built"):
        make_service(path).runner("other")


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("inductor:fast", "no mode 'fast'"),
        ("dynamo:nothing", "no backend 'nothing'"),
        ("nonsense", "no backend 'nonsense'"),
        ("missing.py:f", "does not exist"),
        ("missing.py", "has no function name"),
    ],
)
def test_missing_backend_fails_only_its_variant(net: str, backend: str, words: str) -> None:
    service = make_service(net, variant("a"), variant("b", backend))
    service.runner("a").first_call()
    with pytest.raises(CannotBuild, match=words):
        service.warm("b", 0.1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def make(module):\n    raise ValueError('no luck')\n", ValueError),
        ("import a_package_that_is_not_there\n", ImportError),
        ("make = 3\n", CannotBuild),
    ],
)
def test_a_user_backend_that_raises_fails_its_own_variant_only(
    net: str, tmp_path: Path, text: str, kind: type[Exception]
) -> None:
    backend = write_file(tmp_path, "mine.py", text) + ":make"
    service = make_service(net, variant("a"), variant("b", backend))
    service.runner("a").first_call()
    with pytest.raises(kind):
        service.warm("b", 0.1)


def test_weights_and_inputs_travel_in_the_state_file(net: str, tmp_path: Path) -> None:
    import torch

    state = str(tmp_path / "state.pt")
    first = make_service(net, state=state, seed=1).runner("eager").model
    second = make_service(net, state=state, seed=2).runner("eager").model
    third = make_service(net, seed=2).runner("eager").model

    def same(other: Any) -> bool:
        left = [*first.state(), first.args[0]]
        right = [*other.state(), other.args[0]]
        return all(torch.equal(x, y) for x, y in zip(left, right, strict=True))

    assert same(second)
    assert not same(third)


def test_a_state_of_another_shape_is_refused(net: str, tmp_path: Path) -> None:
    state = str(tmp_path / "state.pt")
    make_service(net, state=state)
    other = write_file(tmp_path, "other.py", NET.replace("(16, 4)", "(16, 5)"))
    with pytest.raises(CannotBuild, match=r"differs between the targets.*second"):
        make_service(other, state=state)

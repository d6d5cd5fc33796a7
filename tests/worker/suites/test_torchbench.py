"""The suite `torchbench`, on a fake checkout with the interface of the real one."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker import suites  # noqa: E402
from torchyard.worker.bench.model import Model, convert  # noqa: E402
from torchyard.worker.suites.torchbench.suite import loss_of, optimizer_of  # noqa: E402
from torchyard.worker.workload import CannotBuild, flatten  # noqa: E402

pytestmark = pytest.mark.torch
TREE = Path(__file__).parents[2] / "torchbench_tree"


def build(name: str, mode: str = "inference", batch_size: int | None = None) -> Any:
    return suites.build("torchbench", name, mode, batch_size, {"path": str(TREE)}, "cpu")


def refusal(name: str, mode: str = "inference", batch_size: int | None = None) -> CannotBuild:
    with pytest.raises(CannotBuild) as caught:
        build(name, mode, batch_size)
    return caught.value


def test_inference_has_the_models_own_inputs_and_batch_size() -> None:
    built = build("tiny_cnn")
    assert built.args[0].shape == (2, 3, 8, 8)
    assert built.batch_size == 2
    assert not built.module.training
    assert built.module(*built.args).shape == (2, 10)
    assert build("tiny_cnn", batch_size=5).args[0].shape[0] == 5


def test_training_takes_the_loss_function_and_the_target_of_the_model() -> None:
    built = build("tiny_cnn", "training")
    assert built.args[0].shape[0] == 4
    assert built.loss_name == "the model's own (CrossEntropyLoss)"
    logits = built.module(*built.args)
    # Cross-entropy does not see a constant that is added to all logits; a mean would.
    assert torch.allclose(built.loss(logits + 5), built.loss(logits))
    built.loss(logits).backward()
    assert all(p.grad is not None for p in built.module.parameters())


def test_the_loss_follows_a_float64_reference() -> None:
    built = build("tiny_cnn", "training")
    reference = convert(built, torch.float64)
    loss = reference.loss(reference.module(*reference.args))  # type: ignore[misc]
    assert loss.dtype is torch.float64


def test_the_optimizer_is_recreated_with_groups_and_settings() -> None:
    built = build("tiny_cnn", "training")
    model = Model(built, training=True, step=True)
    groups = model.optimizer.param_groups  # type: ignore[union-attr]
    assert isinstance(model.optimizer, torch.optim.AdamW)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.5, 0.01), (0.25, 0.0)]
    assert groups[1]["params"][0] is built.module[4].weight
    # A copy in another data type trains the copy.
    copied = Model(convert(built, torch.bfloat16), training=True, step=True)
    assert copied.optimizer.param_groups[0]["params"][0].dtype is torch.bfloat16  # type: ignore[union-attr]


def test_named_inputs_and_a_loss_in_the_output() -> None:
    built = build("tiny_lm", "training")
    assert sorted(built.kwargs) == ["input_ids", "labels"]
    assert built.loss_name == "the model's own"
    output = built.module(**built.kwargs)
    assert built.loss(output) is output["loss"]
    assert isinstance(built.optimizer(list(built.module.parameters())), torch.optim.SGD)


def test_half_precision_of_the_model_is_made_float32() -> None:
    built = build("tiny_lm")
    assert {p.dtype for p in built.module.parameters()} == {torch.float32}
    assert "loss" not in built.module(**built.kwargs)


def test_without_a_loss_it_is_the_mean_of_the_outputs() -> None:
    built = build("two_heads", "training")
    assert built.loss_name == "mean of the outputs"
    output = built.module(*built.args)
    floats = [each for each in flatten(output) if each.is_floating_point()]
    expected = (floats[0].mean() + floats[1].mean()) / 2
    assert torch.allclose(built.loss(output), expected)
    assert built.optimizer is None


def test_a_function_as_module() -> None:
    built = build("eval_only")
    assert built.module(*built.args).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "mode", "batch_size", "said", "hint"),
    [
        (
            "two_heads",
            "inference",
            8,
            "is fixed: 3",
            "remove",
        ),
        (
            "eval_only",
            "training",
            None,
            "does not support training: NotImplementedError",
            "other mode",
        ),
        (
            "cpu_train_refused",
            "training",
            None,
            "not implemented for device cpu, test train",
            "mode",
        ),
        (
            "needs_package",
            "inference",
            None,
            "requires the package torchyard_package_that_is_not_there",
            "torchyard build torchbench --set model=needs_package",
        ),
        (
            "downloads",
            "inference",
            None,
            "needs network access: weights.invalid",
            "install-online=true",
        ),
        ("broken_import", "inference", None, "KeyError: 'large' (__init__.py line 4)", "log"),
        (
            "tiny_cn",
            "inference",
            None,
            "has no model 'tiny_cn'; did you mean tiny_cnn",
            "workloads",
        ),
    ],
)
def test_what_cannot_be_loaded_says_why(
    name: str, mode: str, batch_size: int | None, said: str, hint: str
) -> None:
    error = refusal(name, mode, batch_size)
    assert said in str(error)
    assert hint in error.hint


def test_loading_leaves_the_process_as_it_was() -> None:
    before = (torch.manual_seed, Path.cwd(), list(sys.argv), socket.getaddrinfo)
    build("tiny_cnn")
    refusal("downloads")
    assert (torch.manual_seed, Path.cwd(), list(sys.argv), socket.getaddrinfo) == before
    torch.manual_seed(3)
    assert torch.initial_seed() == 3


def test_a_loss_and_an_optimiser_may_be_in_a_configuration() -> None:
    module = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    config = SimpleNamespace(loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer)
    instance = SimpleNamespace(
        cfg=config, batch_size=2, _gen_target=lambda rows: torch.zeros(rows, dtype=torch.long)
    )
    loss = loss_of(instance, module, (torch.randn(2, 4),), {})
    assert loss.name == "the model's own (CrossEntropyLoss)"
    made = optimizer_of(instance, module)
    assert made is not None
    assert made(list(module.parameters())).param_groups[0]["lr"] == 0.5


def test_an_optimizer_of_other_parameters_is_ignored() -> None:
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.5)
    assert optimizer_of(SimpleNamespace(opt=other), torch.nn.Linear(4, 3)) is None


def test_parameters_and_paths_that_are_wrong() -> None:
    with pytest.raises(CannotBuild, match="no parameter 'pth'; did you mean path"):
        suites.build("torchbench", "tiny_cnn", parameters={"pth": "x"})
    with pytest.raises(CannotBuild, match="not a checkout of pytorch/benchmark"):
        suites.build("torchbench", "tiny_cnn", parameters={"path": str(TREE.parent)})


def test_variable_selects_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_TORCHBENCH", str(TREE))
    assert "tiny_cnn" in suites.names("torchbench")
    assert suites.build("torchbench", "tiny_cnn").args[0].shape[0] == 2

"""Quantised weights: right ones are neither `pass` nor wrong, and every broken quantisation is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = [
    pytest.mark.torch,
    # torch says so once on processors without bfloat16.
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning"),
]

NET = """
    import torch
    from torch import nn

    class Net:
        def module(self):
            return nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))

        def inputs(self):
            return torch.randn(16, 48)
"""
GPT = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 97, "prompt": 7, "generate": 5}
TRAINED = {"layers": 1, "width": 32, "heads": 4, "vocabulary": 97, "length": 8}
with_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed beside the tests"
)


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "net.py", NET) + ":Net"


def checked(service: Any, name: str = "mine", baseline: str = "base") -> dict[str, Any]:
    service.reference(baseline, "", keep=True)
    return dict(service.judge(name, ""))


def quantised_service(workload: str, kind: str = "int8", **more: Any) -> Any:
    return make_service(workload, variant("base"), variant("mine", weights=kind), **more)


@pytest.mark.parametrize("kind", ["int8", "int8-packed"])
def test_the_difference_is_by_design_and_measured(net: str, kind: str) -> None:
    record = checked(quantised_service(net, kind))
    assert record["status"] == "less-accurate"
    assert f"weights={kind} changes results by design: relative difference" in record["detail"]
    assert "agrees with its dequantised weights up to rounding" in record["detail"]
    assert "reference with the same weights" in record["method"]
    assert 1e-4 < record["max_error"] < 0.1
    assert record["comparable"]
    assert any("in 2 of 2 linear layers" in note for note in record["notes"])


@pytest.mark.parametrize("precision", ["bfloat16", "amp"])
def test_with_another_precision(net: str, precision: str) -> None:
    mine = variant("mine", precision=precision, weights="int8")
    record = checked(make_service(net, variant("base"), mine))
    assert record["status"] == "less-accurate"
    assert record["comparable"]


def test_training_is_refused() -> None:
    """A step without its backward pass would be five times as fast as the baseline."""
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match="weights supports inference only"):
        quantised_service("models/gpt", mode="training", parameters=TRAINED).runner("mine")


def test_a_baseline_with_the_same_weights_is_compared_as_usual(net: str) -> None:
    service = make_service(
        net, variant("base", weights="int8"), variant("mine", weights="int8-packed"), variant("raw")
    )
    service.reference("base", "", keep=True)
    # Other kernels, and other values of the option: the weights are the same, but that is not known.
    assert service.judge("mine", "")["status"] == "less-accurate"
    raw = service.judge("raw", "")
    assert raw["status"] == "less-accurate"
    assert "weights=int8 changes results by design" in raw["detail"]
    same = make_service(net, variant("base", weights="int8"), variant("mine", weights="int8"))
    assert checked(same)["status"] == "pass"


def scale_twice(module: Any) -> None:
    module[0].scales.mul_(2.0)


def scale_a_little(module: Any) -> None:
    module[3].scales.mul_(1.002)


def scale_of_one_row(module: Any) -> None:
    module[0].scales[3] *= 0.5


def nan_scale(module: Any) -> None:
    module[0].scales[5] = float("nan")


def one_weight(module: Any) -> None:
    module[0].weight[2, 7] += 64


def skipped_layer(module: Any) -> None:
    import torch

    module[1] = torch.nn.Identity()


def lost_bias(module: Any) -> None:
    module[3].bias = None


BROKEN: list[Callable[[Any], None]] = [
    scale_twice,
    scale_a_little,
    scale_of_one_row,
    nan_scale,
    one_weight,
    skipped_layer,
    lost_bias,
]


@pytest.mark.parametrize("break_it", BROKEN)
def test_a_broken_quantised_module_is_wrong(net: str, break_it: Callable[[Any], None]) -> None:
    """The module is damaged after its weights were dequantised for the reference."""
    service = quantised_service(net)
    break_it(service.runner("mine").own_module)
    assert checked(service)["status"] == "fail"


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.02, float("nan"), 0.0, -1.0])
def test_a_quantiser_with_a_wrong_scale_is_wrong(net: str, factor: float) -> None:
    """Here the module and its dequantised weights agree, but both are far from the original ones."""
    from torchyard.worker.bench.quantised_weights import Int8Linear, linear_layers, quantise_by

    def quantiser(module: Any) -> dict[str, Any]:
        weights = {}
        for name, layer in linear_layers(module).items():
            module[int(name)] = replaced = Int8Linear(layer, packed=False)
            if name == "3":
                replaced.scales.mul_(factor)
            weights[name] = replaced.dequantised
        return weights

    service = quantised_service(net)
    original = service.runner("base").model.module
    quantised = quantise_by(quantiser, copied(original), "int8")
    assert "weight of 3" in quantised.problem
    assert "weight of 0" not in quantised.problem
    service.runner("mine").wrong_weights = quantised.problem
    record = checked(service)
    assert record["status"] == "fail"
    assert "quantisation is wrong" in record["detail"]


def test_a_layer_that_was_not_quantised_is_counted(net: str) -> None:
    from torchyard.worker.bench.quantised_weights import Int8Linear, quantise_by

    def first_layer_only(module: Any) -> dict[str, Any]:
        module[0] = Int8Linear(module[0], packed=False)
        return {"0": module[0].dequantised}

    original = quantised_service(net).runner("base").model.module
    quantised = quantise_by(first_layer_only, copied(original), "int8")
    assert not quantised.problem
    assert "in 1 of 2 linear layers" in quantised.note


def copied(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def test_every_weight_is_within_half_a_step_and_shares_the_rest() -> None:
    import torch

    from torchyard.worker.bench.quantised_weights import quantise, weight_problem

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    with torch.no_grad():
        module[0].weight[4] = 0.0  # a row of zeros has no largest weight
        module[0].weight[5] *= 1e-30
        module[0].weight[6] *= 1e30
    original = module[0].weight.detach().clone()
    quantised = quantise(module, "int8")
    assert not quantised.problem
    assert quantised.module[1].weight is module[1].weight
    assert quantised.module[1].running_mean is module[1].running_mean
    assert quantised.module[0].bias is module[0].bias
    step = original.abs().amax(1, keepdim=True) / 127
    assert bool(((module[0].weight - original).abs() <= 0.501 * step).all())
    assert bool((module[0].weight[4] == 0).all())
    assert "off by up to 127" in weight_problem(original, 0 * original, 127)


def test_tied_weights_are_quantised_in_the_head_only() -> None:
    service = quantised_service("models/gpt", mode="decode", parameters=GPT)
    gpt, changed = service.runner("mine").model.module.gpt, service.runner("mine").own_module.gpt
    assert changed.embedding.weight is gpt.embedding.weight
    assert gpt.head.weight is not gpt.embedding.weight
    assert changed.head.weight.dtype.is_floating_point is False


def test_generated_tokens_are_compared_with_both_weights() -> None:
    record = checked(quantised_service("models/gpt", mode="decode", parameters=GPT))
    assert record["status"] == "less-accurate"
    texts = " ".join(record["notes"])
    assert "as the dequantised weights" in texts or "than the dequantised weights" in texts
    assert "as the original weights" in texts or "than the original weights" in texts


def test_tokens_that_differ_are_reported_with_position_and_gap() -> None:
    """The rows of the head are permuted in the quantised and in the dequantised weights, which still agree."""
    import torch

    service = quantised_service("models/gpt", mode="decode", parameters=GPT)
    runner = service.runner("mine")
    head = runner.own_module.gpt.head
    with torch.no_grad():
        rows = torch.randperm(97)
        head.weight.copy_(head.weight[rows])
        head.scales.copy_(head.scales[rows])
        runner.model.module.gpt.head.weight.copy_(head.dequantised())
    record = checked(service)
    texts = " ".join(record["notes"])
    assert "generates the same 5 tokens as the dequantised weights" in texts
    assert "generates another token than the original weights at position" in texts
    assert "differ by" in texts


@pytest.mark.parametrize(
    ("workload", "options", "message"),
    [
        ("models/unet", {"weights": "int8"}, "no linear layers"),
        ("kernels/attention", {"weights": "int8"}, "no linear layers"),
    ],
)
def test_what_has_no_effect_is_refused(
    workload: str, options: dict[str, str], message: str
) -> None:
    from torchyard.worker.workload import CannotBuild

    service = make_service(workload, variant("base"), variant("mine", **options))
    with pytest.raises(CannotBuild, match=message) as error:
        service.runner("mine")
    assert error.value.hint


def test_without_torchao_the_error_names_it(net: str) -> None:
    if importlib.util.find_spec("torchao") is not None:
        pytest.skip("torchao is installed")
    from torchyard.worker.workload import CannotBuild

    service = quantised_service(net, "torchao-int8")
    with pytest.raises(CannotBuild, match="cannot be imported in the target") as error:
        service.runner("mine")
    assert "install torchao into the target" in error.value.hint


@with_torchao
@pytest.mark.parametrize("kind", ["torchao-int8", "torchao-float8"])
def test_weights_of_torchao(net: str, kind: str) -> None:
    record = checked(quantised_service(net, kind))
    assert record["status"] == "less-accurate"
    assert "agrees with its dequantised weights" in record["detail"]

"""Prices of findings and simulated fixes: recipes, timing, and comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

from tests.worker.values.proof_profiles import findings_of, one, watched  # noqa: E402
from torchyard.worker.values.pricing import fix_timing  # noqa: E402
from torchyard.worker.values.pricing.fix_timing import (  # noqa: E402
    INTO_OWN_MEMORY,
    ONCE_MORE,
    WITHOUT_FILL,
    fixed,
    make,
    method_of,
    open_pair,
    price,
    price_plan,
)
from torchyard.worker.values.pricing.recipes import fill_recipe, recipe_of  # noqa: E402
from torchyard.worker.values.proofs.trial_inputs import same_bits  # noqa: E402
from torchyard.worker.workload import CannotBuild  # noqa: E402

pytestmark = pytest.mark.torch

DEAD, REDUNDANT = "dead initialisation", "redundant write"
aten = torch.ops.aten


def through_json(recipe: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(recipe))
    return found


def loss_finding(name: str = "mse_loss", size: int = 64) -> Any:
    own = torch.randn(size, size, requires_grad=True)
    target = torch.randn(size, size)
    return one(watched(lambda: getattr(F, name)(own, target).backward()), DEAD)


def test_a_dead_fill_is_written_down_with_its_operator() -> None:
    recipe = through_json(loss_finding().recipe)
    assert recipe["operator"]["operator"] == "aten::mse_loss_backward"
    assert [part["operator"] for part in recipe["wasted"]] == ["aten::zero_"]
    assert recipe["wasted"][0]["args"][0]["tensor"]["shape"] == [64, 64]


def test_the_wasted_part_costs_less_than_the_operator() -> None:
    found = price(through_json(loss_finding(size=512).recipe), seconds=0.1)
    assert 0 < found["wasted_ns"] < found["operator_ns"]
    assert 0 < found["wasted_low_ns"] <= found["wasted_high_ns"]
    assert 0 < found["ratio_low"] <= found["ratio_high"]
    assert found["differ"] >= 1
    assert "samples of the operator alone" in found["method"]
    assert found["fix"] == INTO_OWN_MEMORY


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_losses_write_into_memory_that_nobody_filled(name: str) -> None:
    way, tensors = open_pair(through_json(loss_finding(name).recipe))
    assert way.method == INTO_OWN_MEMORY
    assert way.fixed is not None
    with torch.no_grad():
        assert same_bits(way(*tensors), way.fixed(*tensors))


def test_an_operator_without_such_an_overload_gets_the_work_once_more() -> None:
    recipe = {
        "operator": recipe_of(aten.select_backward.default, (torch.randn(9), [8, 9], 0, 1), {}),
        "wasted": [fill_recipe((8, 9), torch.float32)],
        "mending": "inside",
    }
    way, tensors = open_pair(through_json(recipe))
    assert way.method == ONCE_MORE
    assert way.fixed is not None
    assert same_bits(way(*tensors), way.fixed(*tensors))


def test_an_overload_that_needs_the_fill_is_not_taken_for_a_fix() -> None:
    index, grad = torch.randint(0, 20, (30,)), torch.randn(30, 8)
    args = (grad, index, 20, -1, False)
    recipe = {
        "operator": recipe_of(aten.embedding_dense_backward.default, args, {}),
        "wasted": [fill_recipe((20, 8), torch.float32)],
        "mending": "inside",
    }
    assert method_of(recipe) == ONCE_MORE


def test_a_fill_before_a_copy_is_left_out() -> None:
    source = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        return buffer.copy_(source).sum()

    finding = one(watched(program, deep=False), DEAD)
    way, tensors = open_pair(through_json(finding.recipe))
    assert way.method == WITHOUT_FILL
    assert way.fixed is not None
    assert same_bits(way(*tensors).clone(), way.fixed(*tensors))
    assert price(through_json(finding.recipe), seconds=0.05)["wasted_ns"] > 0


def test_zeroed_gradients_cost_a_fill_and_a_sum() -> None:
    weight = torch.randn(40, 40, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        weight.square().sum().backward()
        optimizer.step()

    finding = one(watched(step, times=3, deep=False), DEAD)
    assert [part["operator"] for part in finding.recipe["wasted"]] == ["aten::zero_", "aten::add_"]
    found = price(through_json(finding.recipe), seconds=0.05)
    assert found["wasted_ns"] == found["operator_ns"] > 0
    assert found["fix"] == ""


def test_a_redundant_write_costs_itself() -> None:
    buffer = torch.randn(64, 64)
    finding = one(watched(lambda: buffer.mul_(1.0), times=2, deep=False), REDUNDANT)
    assert finding.recipe["wasted"][0]["operator"] == "aten::mul_"
    assert price(through_json(finding.recipe), seconds=0.05)["wasted_ns"] > 0
    with pytest.raises(CannotBuild):
        open_pair(finding.recipe)


def test_numbers_that_are_too_wide_cost_a_share() -> None:
    labels = torch.randint(0, 3, (200, 200))

    def program() -> Any:
        classes = labels + 1
        return classes.sum() + classes.max() + classes.min()

    found_ones = findings_of(watched(program, times=3, deep=False), "heavy type")
    assert found_ones
    for finding in found_ones:
        assert 0 < finding.recipe["share"] < 1
        found = price(through_json(finding.recipe), seconds=0.05)
        assert found["wasted_ns"] < found["operator_ns"]
        assert "share of its bytes" in found["method"]


def test_an_operator_that_refuses_made_up_arguments_has_no_price() -> None:
    bad = {"wasted": [dict(fill_recipe((2,), torch.float32), operator="aten::no_such")]}
    assert "no aten::no_such" in price(bad)["unavailable"]
    assert price({"wasted": []})["unavailable"]
    assert price({"unavailable": "because", "wasted": []}) == {"unavailable": "because"}


def test_what_an_operator_writes_is_restored_before_each_sample() -> None:
    half = torch.full((64,), 0.5)
    recipe = {"wasted": [recipe_of(aten.mul_.Tensor, (torch.ones(64), half), {})]}
    assert price(recipe, seconds=0.02)["wasted_ns"] > 0


def test_an_operator_is_timed_on_the_mask_that_the_program_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(64, 64)
    mask = torch.zeros(64, 64, dtype=torch.bool)
    finding = one(
        watched(lambda: x.masked_fill(mask, 0.0), times=4, deep=False), "guard that never fires"
    )
    timed: list[Any] = []
    monkeypatch.setattr(fix_timing, "time_side_by_side", lambda sides, _s: timed.extend(sides))
    with pytest.raises(ValueError, match="empty"):  # nothing was timed
        fix_timing._price(through_json(finding.recipe), 0.0)
    (part,) = timed[0]._parts
    assert part.func is aten.masked_fill.Scalar
    assert not part.args[1].any()


def test_a_plan_is_priced_in_order_and_a_bad_one_does_not_end_it(tmp_path: Path) -> None:
    output = tmp_path / "prices.json"
    good = {"wasted": [fill_recipe((64, 64), torch.float32)]}
    threads = torch.get_num_threads()
    try:
        plan = {"price": [good, {"wasted": []}, good], "output": str(output), "threads": 1}
        assert price_plan({**plan, "seconds_each": 0.02}) == 0
    finally:
        torch.set_num_threads(threads)
    prices = json.loads(output.read_text())["prices"]
    assert ["wasted_ns" in item for item in prices] == [True, False, True]


def test_the_workload_file_of_a_fix(tmp_path: Path) -> None:
    path = tmp_path / "finding.json"
    path.write_text(json.dumps(loss_finding().recipe))
    module, inputs = make(str(path))
    assert module is not fixed(module)
    with torch.no_grad():
        assert same_bits(module(*inputs), fixed(module)(*inputs))

"""A sweep of operators of the installed torch: waste is found, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch

DEAD, REDUNDANT = "dead initialisation", "redundant write"


def swept(name: str) -> dict[str, Any]:
    from torchyard.worker.values.operator_sweep import chosen_cases, sweep_case

    (case,) = chosen_cases(name)
    return sweep_case(case, "cpu")


def waste(row: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(direction, pattern, outermost operator, certainty) of each finding."""
    return [
        (
            found["direction"],
            found["pattern"],
            [*found["path"], found["operator"]][0],
            found["proof"]["certainty"],
        )
        for found in row["findings"]
    ]


@pytest.mark.parametrize(
    ("name", "pattern", "operator"),
    [
        ("mse_loss", DEAD, "aten::mse_loss_backward"),
        ("smooth_l1_loss", DEAD, "aten::smooth_l1_loss_backward"),
        ("huber_loss", DEAD, "aten::huber_loss_backward"),
        ("nll_loss2d", REDUNDANT, "aten::nll_loss2d_backward"),
        ("multilabel_margin_loss", REDUNDANT, "aten::multilabel_margin_loss_backward"),
        ("avg_pool3d", DEAD, "aten::avg_pool3d_backward"),
        ("avg_pool3d.gaps", DEAD, "aten::avg_pool3d_backward"),
    ],
)
def test_fills_that_torch_2_13_wastes_are_found(name: str, pattern: str, operator: str) -> None:
    import torch

    if not torch.__version__.startswith("2.13."):
        pytest.skip("known of torch 2.13")

    row = swept(name)

    assert row["state"] == "done", row["why"]
    # What the kernel of a pooling writes is known from trials alone.
    certainty = "tested" if name.startswith("avg_pool3d") else "proven"
    assert waste(row) == [("backward", pattern, operator, certainty)]
    (found,) = row["findings"]
    assert row["written_bytes"] > found["bytes_wasted"]
    assert row["not_seen_bytes"] == 0
    assert found["native"] >= 1
    assert 0 < found["worth"]["wasted_ns"] < found["worth"]["operator_ns"]
    assert found["worth"]["gain"] > 0
    inputs = {test["inputs"] for test in found["proof"]["tests"] if test["test"] != "refused"}
    assert {"drawn for the case, 1", "drawn for the case, 2"} <= inputs


@pytest.mark.parametrize("name", ["binomial", "poisson", "standard_gamma"])
def test_samplers_write_all_of_the_zeros_that_they_start_with(name: str) -> None:
    row = swept(name)
    assert [(found[0], found[1], found[3]) for found in waste(row)] == [("forward", DEAD, "tested")]


@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "gumbel_softmax",
        "rrelu.training",
        "pad.replicate1d",
        "pad.replicate2d",
        "pad.replicate3d",
        "pad.reflect2d",
        "embedding",
        "max_pool2d",
        "max_pool2d.overlap",
        "max_pool3d",
        "index_add",
        "index_select",
        "scatter_add",
        "adaptive_max_pool2d",
        "conv2d.double",
        "fold",
    ],
)
def test_fills_that_are_needed_are_no_findings(name: str) -> None:
    row = swept(name)

    assert row["state"] == "done", row["why"]
    assert row["directions"] == ["forward", "backward"]
    assert [found for found in waste(row) if found[1] in (DEAD, REDUNDANT)] == []


def test_two_fills_of_one_buffer_are_one_finding() -> None:
    """`histc` fills its result, and the sum that it writes there fills it again."""
    assert [found[:3] for found in waste(swept("histc"))] in (
        [],
        [("forward", REDUNDANT, "aten::histc")],
    )


def test_a_guard_inside_an_operator_is_never_more_than_likely() -> None:
    row = swept("safe_softmax")

    assert row["state"] == "done", row["why"]
    assert {found[3] for found in waste(row)} <= {"likely", "input-dependent"}


def test_a_guard_that_is_called_by_name_is_no_waste() -> None:
    assert waste(swept("clamp")) == []
    assert waste(swept("nan_to_num")) == []


def test_a_copy_of_a_tensor_to_itself_is_no_write() -> None:
    """`pow_` with exponent 1 copies a tensor to itself, from which torch returns at once."""
    assert waste(swept("vector_norm.p3")) == []


def test_a_case_that_torch_refuses_is_unsupported_and_says_why() -> None:
    from torchyard.worker.values.operator_cases import case
    from torchyard.worker.values.operator_sweep import sweep_case

    def refuse(_tensor: object) -> object:
        raise NotImplementedError('"thing" not implemented for\n this device')

    row = sweep_case(case("refused", refuse, lambda d: [d.learned(64, 64)]), "cpu")
    gone = sweep_case(case("gone", "no_such_thing", lambda d: [d.learned(64, 64)]), "cpu")

    assert (row["state"], row["findings"]) == ("unsupported", [])
    assert row["why"] == 'NotImplementedError: "thing" not implemented for this device'
    assert (gone["state"], gone["why"]) == (
        "unsupported",
        "Missing: this torch has no torch.no_such_thing",
    )


def test_a_case_that_only_fails_while_profiled_has_failed() -> None:
    import torch

    from torchyard.worker.values.operator_cases import case
    from torchyard.worker.values.operator_sweep import sweep_case

    def shy(tensor: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("somebody looks")
        return tensor * 2

    row = sweep_case(case("shy", shy, lambda d: [d.learned(64, 64)]), "cpu")

    assert (row["state"], row["why"]) == ("failed", "RuntimeError: somebody looks")


def test_planted_waste_of_a_case_in_python_is_found() -> None:
    import torch

    from torchyard.worker.values.operator_cases import case
    from torchyard.worker.values.operator_sweep import sweep_case

    def filled_first(tensor: Any) -> Any:
        made = torch.zeros_like(tensor)
        made.copy_(tensor)
        return made

    row = sweep_case(case("planted", filled_first, lambda d: [d.floats(128, 256)]), "cpu")

    assert row["directions"] == ["forward"]
    assert [found[:3] for found in waste(row)] == [("forward", DEAD, "aten::zeros_like")]
    assert row["findings"][0]["bytes_wasted"] == 128 * 256 * 4


def test_work_of_torch_that_occurs_only_while_profiled_is_marked() -> None:
    """Backward of `max` takes another formula under a dispatch mode."""
    row = swept("max")

    assert row["state"] == "done", row["why"]
    assert all(
        found["proof"]["certainty"] != "proven" for found in row["findings"] if not found["native"]
    )


def test_random_numbers_and_threads_of_the_caller_are_left_alone() -> None:
    import torch

    threads = torch.get_num_threads()
    swept("relu")

    assert torch.get_num_threads() == threads
    assert torch._C._len_torch_dispatch_stack() == 0

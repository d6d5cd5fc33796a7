"""Which findings have a fix that can be applied, and when two runs show the same results."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard.values.fix_runs import fix_of, same_results
from torchyard.values.model import Certainty, Place, Proof, ValueFinding


def finding(pattern: str, operator: str, **more: Any) -> ValueFinding:
    calls = more.pop("calls", [("wasted", operator, 7)])
    backward = more.pop("backward", False)
    recipe = {
        "calls": [
            {
                "operator": name,
                "file": "f.py",
                "line": line,
                "backward": False,
                "shapes": "float32[4]",
                "role": role,
                "calls": 1,
            }
            for role, name, line in calls
        ]
    }
    place = Place(file="f.py", line=7, backward=backward)
    return ValueFinding(
        pattern=pattern, operator=operator, place=place, recipe=recipe, shape=(4,), **more
    )


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (finding("dead initialisation", "aten::zeros"), "empty"),
        (finding("dead initialisation", "aten::zero_"), "skip"),
        (finding("redundant write", "aten::copy_"), "skip"),
        (finding("guard that never fires", "aten::clamp", dtype="float32"), "argument"),
        (finding("duplicate", "aten::clone", detail="a copy, and neither it nor"), "argument"),
        (finding("duplicate", "aten::mm", detail="the same bits as aten::mm"), "reuse"),
        (finding("unchanged across steps", "aten::where"), "reuse"),
        (finding("dead initialisation", "aten::zero_", detail="gradient zeroed only"), None),
        (finding("redundant write", "aten::copy_", evidence={"unchanged_share": 0.9}), None),
        (finding("heavy type", "aten::_to_copy"), None),
        (finding("duplicate", "aten::mm", backward=True), None),
        (finding("redundant write", "aten::zero_", path=("aten::mse_loss_backward",)), None),
        (
            finding(
                "redundant write",
                "aten::copy_",
                proof=Proof(certainty=Certainty.INPUT_DEPENDENT),
            ),
            None,
        ),
    ],
)
def test_the_fix_of_a_pattern(one: ValueFinding, kind: str | None) -> None:
    fix = fix_of(one)
    assert (fix.plan["kind"] if fix is not None else None) == kind


def test_zeros_that_are_added_to_are_copied() -> None:
    detail = "zeroed only to be added to: the result is the addend"
    one = finding("dead initialisation", "aten::zero_", detail=detail)
    assert fix_of(one) is None, "where they are added is unknown"
    added = finding(
        "dead initialisation",
        "aten::zero_",
        detail=detail,
        evidence={"added_by": {"file": "f.py", "line": 9}},
    )
    fix = fix_of(added)
    assert fix is not None
    assert (fix.plan["kind"], fix.plan["added_lines"]) == ("copy", [("f.py", 9)])


def test_a_chain_is_reused_at_all_of_its_lines() -> None:
    calls = [("wasted", "aten::mm", 7), ("repeated", "aten::tanh", 8), ("reads", "aten::sin", 9)]
    fix = fix_of(finding("duplicate", "aten::mm", calls=calls))
    assert fix is not None
    assert fix.plan["lines"] == [("f.py", 7), ("f.py", 8)]
    assert fix.rounds, "gradients are added in another order"


def parameters(*numbers: float, digest: str = "x") -> dict[str, Any]:
    return {"parameters": {"digest": digest, "numbers": numbers, "scales": [100.0] * len(numbers)}}


def test_bits_must_be_equal_unless_the_fix_rounds() -> None:
    one, close, far = parameters(1.0), parameters(1.0001, digest="y"), parameters(2, digest="z")
    assert same_results(one, one) == {"parameters": ""}
    assert same_results(one, close) == {"parameters": "differs"}
    assert same_results(one, close, rounds=True) == {"parameters": "equal up to rounding (1e-06)"}
    assert same_results(one, far, rounds=True) == {"parameters": "differs"}
    assert same_results(one, parameters(1, 2, digest="w"), rounds=True) == {"parameters": "differs"}
    assert same_results(one, parameters(float("nan"), digest="n"), rounds=True) == {
        "parameters": "differs"
    }


@pytest.mark.parametrize(
    ("form", "numbers", "same"),
    [
        ("loss #", [0.12345], "equal up to rounding (8e-05)"),
        ("loss #", [0.12445], "differs"),
        ("cost #", [0.12346], "differs"),
        ("loss #", [0.12346, 1.0], "differs"),
    ],
)
def test_printed_numbers_may_differ_in_their_last_digits(
    form: str, numbers: list[float], same: str
) -> None:
    one = {"printed text": {"digest": "a", "form": "loss #", "numbers": [0.12346]}}
    other = {"printed text": {"digest": "b", "form": form, "numbers": numbers}}
    assert same_results(one, other, rounds=True) == {"printed text": same}


def test_a_result_that_only_one_run_has_differs() -> None:
    assert same_results(parameters(1.0), {}) == {"parameters": "differs: only one run has it"}
    assert same_results({}, {}) == {}

"""Fixes applied to running code: their effects, their limits, and compared values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.values.fix_runs import same_results  # noqa: E402
from torchyard.worker.values.pricing.applied_fix import AppliedFix, ObservedResults  # noqa: E402

pytestmark = pytest.mark.torch


def lines_of(function: Callable[..., Any], *marks: str) -> list[tuple[str, int]]:
    """Return file and line of the lines of a function that contain a mark."""
    lines, first = inspect.getsourcelines(function)
    return [
        (function.__code__.co_filename, first + number)
        for number, line in enumerate(lines)
        if any(mark in line for mark in marks)
    ]


def run(
    function: Callable[[], Any], *, on: bool = True, **plan: Any
) -> tuple[Any, AppliedFix, dict[str, Any]]:
    torch.manual_seed(0)
    observed = ObservedResults()
    fix = AppliedFix(plan, observed)
    fix.on = on
    with fix:
        result = function()
    return result, fix, observed.as_dict()


def filled() -> Any:
    buffer = torch.full((4, 4), 7.0)
    buffer.zero_()  # here
    other = torch.full((2,), 7.0)
    other.zero_()
    return buffer, other


def test_a_write_is_left_out_at_its_line_only() -> None:
    plan: dict[str, Any] = {
        "kind": "skip",
        "lines": lines_of(filled, "# here"),
        "names": ["zero_"],
        "shapes": ["float32[4, 4]"],
    }
    (buffer, other), fix, _ = run(filled, **plan)
    assert buffer.sum() == 7 * 16
    assert other.sum() == 0
    assert (fix.matched, fix.applied) == (1, 1)
    (buffer, _), fix, _ = run(filled, on=False, **plan)
    assert buffer.sum() == 0
    assert (fix.matched, fix.applied) == (1, 0)
    plan["shapes"] = ["float32[8]"]
    assert run(filled, **plan)[1].matched == 0, "another shape is another call site"


def assigned() -> Any:
    buffer = torch.full((4, 4), 7.0)
    buffer[1:] = 0.0
    return buffer


def test_an_assignment_to_a_slice_is_a_write() -> None:
    plan: dict[str, Any] = {"lines": lines_of(assigned, "[1:]"), "names": ["fill_", "__setitem__"]}
    assert run(assigned, kind="skip", **plan)[0].sum() == 7 * 16


FILLS: dict[str, Callable[[], Any]] = {
    "zeros": lambda: torch.zeros(3, 2, dtype=torch.float64),
    "ones": lambda: torch.ones((3, 2)),
    "full": lambda: torch.full((3, 2), 4),
    "zeros_like": lambda: torch.zeros_like(torch.empty(3, 2, dtype=torch.int8)),
    "full_like": lambda: torch.full_like(torch.empty(3, 2), 2.0),
    "new_zeros": lambda: torch.empty(1, dtype=torch.int16).new_zeros(3, 2),
    "new_full": lambda: torch.empty(1).new_full((3, 2), fill_value=1.0),
}


@pytest.mark.parametrize("name", FILLS)
def test_memory_without_a_fill_has_the_same_form(name: str) -> None:
    make = FILLS[name]
    result, fix, _ = run(make, kind="empty", lines=lines_of(make, "lambda"), names=[name])
    assert fix.applied == 1
    wanted = make()
    assert (result.shape, result.dtype, result.stride()) == (
        wanted.shape,
        wanted.dtype,
        wanted.stride(),
    )


def added() -> Any:
    total = torch.empty(8).fill_(5.0)
    total.zero_()
    total += torch.arange(8.0)
    return total


def test_zeros_that_are_added_to_become_a_copy() -> None:
    result, fix, _ = run(
        added,
        kind="copy",
        lines=lines_of(added, "zero_"),
        added_lines=lines_of(added, "+="),
        names=["zero_"],
    )
    assert result.tolist() == torch.arange(8.0).tolist()
    assert fix.applied == 2


def guarded() -> Any:
    x = torch.ones(4, 4)
    return x, x.clamp(0, 2), torch.where(x > 0, x, 0.0)


def test_an_equal_result_is_replaced_by_the_argument() -> None:
    form: dict[str, Any] = {
        "shape": [4, 4],
        "dtype": "float32",
        "lines": lines_of(guarded, "clamp"),
    }
    (x, clamped, _), _, _ = run(guarded, kind="argument", names=["clamp"], positions=[0], **form)
    assert clamped is x
    (x, _, chosen), _, _ = run(guarded, kind="argument", names=["where"], positions=[1, 2], **form)
    assert chosen is x


def repeated() -> Any:
    weight = torch.ones(8, 8, requires_grad=True)
    one = torch.tanh(weight.t() @ weight)
    two = torch.tanh(weight.t() @ weight)  # again
    (one.sum() + two.sum()).backward()
    return one, two, weight.grad


def test_results_are_reused_with_their_graph() -> None:
    plain = run(repeated, kind="reuse", on=False, lines=[], per_step=True)[0]
    lines = lines_of(repeated, "tanh")
    (one, two, gradient), fix, _ = run(repeated, kind="reuse", lines=lines, per_step=True)
    assert two is one
    assert fix.applied == 3, "transpose, product and tanh"
    assert torch.allclose(gradient, plain[2])


def written_between() -> Any:
    x = torch.ones(8)
    one = x * 2
    x.add_(1)
    two = x * 2
    two.add_(1)
    three = x * 2
    return one, two, three


def test_what_was_written_is_computed_again() -> None:
    lines = lines_of(written_between, "x * 2")
    (one, two, three), fix, _ = run(written_between, kind="reuse", lines=lines)
    assert fix.applied == 0
    assert (one[0], two[0], three[0]) == (2, 5, 4)


def drawn() -> Any:
    x = torch.ones(64)
    draws = [torch.nn.functional.dropout(x, 0.5) for _ in range(4)] + [torch.randn(4)] * 2
    draws += [torch.nn.functional.gumbel_softmax(x) for _ in range(4)]
    return draws


def test_random_numbers_are_drawn_again() -> None:
    plain = run(drawn, kind="none", lines=[])[0]
    again, fix, _ = run(drawn, kind="reuse", lines=lines_of(drawn, "draws"), per_step=True)
    assert fix.applied == 0
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


def autocast() -> Any:
    x = torch.ones(8, 8)
    one = x @ x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        two = x @ x
    return one, two


def test_results_under_other_settings_are_other_results() -> None:
    (one, two), fix, _ = run(autocast, kind="reuse", lines=lines_of(autocast, "x @ x"))
    assert fix.applied == 0
    assert (one.dtype, two.dtype) == (torch.float32, torch.bfloat16)


def masks() -> Any:
    found = []
    for _ in range(3):
        places = torch.arange(16)
        seen = places[:, None] >= places[None, :]
        found.append(torch.where(seen, 0.0, float("-inf")))
    return found


def test_a_chain_without_inputs_is_computed_once() -> None:
    lines = lines_of(masks, "arange", "seen =", "where")
    (first, second, third), fix, _ = run(masks, kind="reuse", lines=lines)
    assert first is second
    assert second is third
    assert fix.applied == 2 * 5


def test_results_of_a_step_are_not_kept_for_the_next() -> None:
    lines = lines_of(masks, "arange")
    fix = AppliedFix({"kind": "reuse", "lines": lines, "per_step": True}, ObservedResults())
    fix.on = True
    with fix:
        masks()
        assert fix.applied == 2
        fix.end_step()
        masks()
    assert fix.applied == 4


def read_values() -> Any:
    x = torch.linspace(0, 1, 5)
    return x.sum().item(), bool(x[0] > 0), x.tolist(), float(x[1])


def test_values_that_python_reads_are_compared() -> None:
    one, other = (run(read_values, kind="none", lines=[])[2] for _ in range(2))
    assert one["values read by Python"]["count"] == 4
    assert same_results(one, other) == {"values read by Python": ""}
    wrong = run(
        read_values,
        kind="argument",
        names=["linspace"],
        positions=[0],
        shape=[5],
        dtype="float32",
        lines=[],
    )[2]
    assert same_results(one, wrong) == {"values read by Python": ""}, "nothing was changed"

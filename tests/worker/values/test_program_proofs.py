"""Proofs of programs with planted waste: fills, sums with zeros, writes and guards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.worker.values.proof_profiles import (  # noqa: E402
    certainty_if_native,
    findings_of,
    named_tests,
    one,
    watched,
)
from torchyard.worker.values.proofs.certainty import (  # noqa: E402
    INPUT_DEPENDENT,
    LIKELY,
    NEEDED,
    POISON,
    PROVEN,
    REPLACE,
    SKIP,
    TESTED,
    UNREAD,
)

pytestmark = pytest.mark.torch

DEAD, REDUNDANT, GUARD = "dead initialisation", "redundant write", "guard that never fires"
DEEP = pytest.mark.parametrize("deep", [False, True])


@DEEP
def test_zeros_that_a_copy_overwrites_are_dead(deep: bool) -> None:
    source = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        buffer.copy_(source)
        return buffer * 2

    finding = one(watched(program, times=2, deep=deep), DEAD)
    assert finding.operator == "aten::zeros"
    assert certainty_if_native(finding) == PROVEN
    assert named_tests(finding, UNREAD)
    assert {test["inputs"] for test in named_tests(finding, POISON)} > {"the program's own"}


@DEEP
def test_zeros_that_an_out_argument_overwrites_are_dead(deep: bool) -> None:
    one_side, other = torch.randn(64, 64), torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        return torch.add(one_side, other, out=buffer).sum()

    finding = one(watched(program, deep=deep), DEAD)
    assert certainty_if_native(finding) == PROVEN


@DEEP
def test_zeros_that_are_overwritten_piece_by_piece_are_dead(deep: bool) -> None:
    rows = torch.randn(8, 128)

    def program() -> Any:
        table = torch.zeros(8, 128)
        for number in range(8):
            table[number] = rows[number]
        return table + 1

    finding = one(watched(program, deep=deep), DEAD)
    assert certainty_if_native(finding) == PROVEN


@DEEP
@pytest.mark.parametrize("pieces", [1, 4])
def test_zeros_that_another_call_of_the_line_reads_depend_on_the_input(
    deep: bool, pieces: int
) -> None:
    batches = torch.randn(160, 32).split(64)  # the last one has 32 rows

    def program() -> Any:
        total = torch.tensor(0.0)
        for batch in batches:
            slots = torch.zeros(64, 32)
            for part in batch.split(64 // pieces):
                start = part.storage_offset() // 32 % 64
                slots[start : start + len(part)] = part
            total = total + slots.sum()
        return total

    finding = one(watched(program, deep=deep), DEAD)
    assert finding.count == 2
    assert certainty_if_native(finding) == INPUT_DEPENDENT
    (needed,) = named_tests(finding, NEEDED)
    assert needed["detail"] == "the values were read in 1 of 3 calls of this line"


def test_zeros_of_which_only_the_written_part_is_read_are_not_needed() -> None:
    batches = torch.randn(160, 32).split(64)

    def program() -> Any:
        total = torch.tensor(0.0)
        for batch in batches:
            slots = torch.zeros(64, 32)
            slots[: len(batch)] = batch
            total = total + slots[: len(batch)].sum()
        return total

    finding = one(watched(program, deep=False), DEAD)
    assert not named_tests(finding, NEEDED)
    assert certainty_if_native(finding) == TESTED


def test_a_buffer_that_the_overwriting_operator_also_reads_is_no_finding() -> None:
    def program() -> Any:
        buffer = torch.zeros(64, 64)
        return torch.add(buffer, 1.0, out=buffer).sum()

    session = watched(program, times=3, deep=False)
    assert findings_of(session, DEAD) == []


@DEEP
def test_gradients_zeroed_to_be_added_to(deep: bool) -> None:
    weight = torch.randn(40, 40, requires_grad=True)
    x = torch.randn(8, 40)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (x @ weight).square().mean().backward()
        optimizer.step()

    finding = one(watched(step, times=3, deep=deep), DEAD, "aten::zero_")
    assert "gradient" in finding.detail
    assert certainty_if_native(finding) == TESTED, "0 + -0.0 is 0.0"
    assert all(test["passed"] for test in named_tests(finding, REPLACE))
    assert any("-0.0" in test["detail"] for test in named_tests(finding, REPLACE))


@DEEP
def test_a_sum_with_zeros(deep: bool) -> None:
    part = torch.randn(50, 50)

    def program() -> Any:
        total = torch.zeros(50, 50)
        total.add_(part)
        return total.exp()

    session = watched(program, times=3, deep=deep)
    assert certainty_if_native(one(session, DEAD)) == TESTED, "0 + -0.0 is 0.0"


def test_an_accumulator_of_several_parts_is_no_finding() -> None:
    parts = [torch.randn(50, 50) for _ in range(3)]

    def program() -> Any:
        total = torch.zeros(50, 50)
        for part in parts:
            total.add_(part)
        return total.exp()

    assert findings_of(watched(program, times=3), DEAD) == []


@DEEP
def test_a_buffer_that_is_zeroed_twice(deep: bool) -> None:
    part = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        buffer.zero_()
        buffer[:32] = part[:32]
        return buffer.sum()

    session = watched(program, times=3, deep=deep)
    finding = findings_of(session, REDUNDANT)[0]
    assert certainty_if_native(finding) == PROVEN


@DEEP
def test_a_copy_of_what_is_there_depends_on_the_input(deep: bool) -> None:
    source = torch.randn(64, 64)
    buffer = source.clone()
    session = watched(lambda: buffer.copy_(source), times=3, deep=deep)
    finding = findings_of(session, REDUNDANT)[0]
    assert finding.proof["certainty"] == INPUT_DEPENDENT
    assert certainty_if_native(finding) == INPUT_DEPENDENT


def test_a_multiplication_by_one_changes_signalling_nans() -> None:
    buffer = torch.randn(64, 64)

    def program() -> None:
        buffer.mul_(1.0)

    finding = one(watched(program, times=3, deep=False), REDUNDANT)
    assert certainty_if_native(finding) == TESTED
    assert len({test["inputs"] for test in named_tests(finding, SKIP)}) == 3


def test_a_sum_with_nothing_changes_the_sign_of_zero() -> None:
    buffer = torch.rand(64, 64) + 1
    finding = one(watched(lambda: buffer.add_(0.0), times=3, deep=False), REDUNDANT)
    assert certainty_if_native(finding) == INPUT_DEPENDENT


def test_integers_that_cannot_be_varied_leave_a_doubt() -> None:
    table = torch.zeros(64, dtype=torch.int64).repeat(64)
    index = torch.arange(64 * 64)
    zeros = torch.zeros(64 * 64, dtype=torch.int64)
    session = watched(lambda: table.index_copy_(0, index, zeros), times=3, deep=False)
    for finding in findings_of(session, REDUNDANT):
        assert certainty_if_native(finding) == LIKELY
        assert "integers" in finding.proof["why"]


def test_integers_that_are_plain_numbers_are_varied() -> None:
    numbers = torch.arange(4096)
    buffer = numbers.clone()
    session = watched(lambda: buffer.copy_(numbers), times=3, deep=False)
    assert certainty_if_native(one(session, REDUNDANT)) == INPUT_DEPENDENT

    def program() -> None:
        buffer.mul_(1)

    session = watched(program, times=3, deep=False)
    assert certainty_if_native(one(session, REDUNDANT)) == PROVEN


@DEEP
def test_a_write_that_changes_a_little_is_wasted_in_part_only(deep: bool) -> None:
    source = torch.zeros(100, 100)

    def program() -> Any:
        source[0, 0] += 1
        buffer.copy_(source)
        return buffer.sum()

    buffer = torch.zeros(100, 100)
    for finding in findings_of(watched(program, times=3, deep=deep), REDUNDANT):
        assert certainty_if_native(finding) != PROVEN


@pytest.mark.parametrize("in_place", [False, True])
def test_a_mask_that_never_fires_depends_on_the_input(in_place: bool) -> None:
    values = torch.randn(100, 100)
    mask = torch.zeros(100, 100, dtype=torch.bool)

    def program() -> Any:
        fill = values.masked_fill_ if in_place else values.masked_fill
        return fill(mask, 0.0).sum()

    session = watched(program, times=5, deep=False)
    finding = next(f for f in session.findings.all() if f.pattern in (GUARD, REDUNDANT))
    assert finding.proof["certainty"] == INPUT_DEPENDENT
    assert certainty_if_native(finding) == INPUT_DEPENDENT


def test_a_guard_that_meets_no_bad_value_depends_on_the_input() -> None:
    values = torch.rand(100, 100) + 1

    session = watched(lambda: torch.clamp(values, min=0.0).sum(), times=5, deep=False)
    assert one(session, GUARD).proof["certainty"] == INPUT_DEPENDENT


def test_every_finding_says_how_sure_it_is() -> None:
    source = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        buffer.copy_(source)
        return torch.clamp(buffer, min=-1e9).relu()

    session = watched(program, times=4)
    for finding in session.findings.all():
        if finding.pattern in (DEAD, REDUNDANT, GUARD):
            assert finding.proof["certainty"] in (LIKELY, INPUT_DEPENDENT)
            assert finding.proof["why"]
            assert finding.proof["tests"] or finding.proof["why"].startswith("not tested")

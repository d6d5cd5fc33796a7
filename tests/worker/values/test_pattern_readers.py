"""Patterns that depend on how a tensor is read: what is found, and near misses that must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from tests.worker.values.pattern_profiles import (  # noqa: E402
    names,
    only,
    patterns,
    profile_patterns,
    profile_steps,
)
from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch

SINGLES = {"single zero", "single value"}
SIZE = (128, 64)


def _repeat(body: Callable[[], object], times: int = 4) -> Callable[[], None]:
    def program() -> None:
        for _ in range(times):
            body()

    return program


# --- fills that are only operands -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "pattern"),
    [
        (lambda x: x - torch.full(SIZE, 0.5), "single value"),
        (lambda x: x * torch.full_like(x, 3.0), "single value"),
        (lambda x: F.mse_loss(x, torch.ones_like(x)), "single value"),
        (lambda x: x > torch.zeros(SIZE), "single zero"),
    ],
)
def test_a_fill_that_is_only_an_operand(use: Any, pattern: str) -> None:
    found = only(profile_patterns(_repeat(lambda: use(torch.randn(SIZE)))), pattern)
    assert found.operator in {"aten::full", "aten::full_like", "aten::ones_like", "aten::zeros"}
    assert "only read as an operand" in found.detail


def _accumulate() -> None:
    total = torch.zeros(SIZE)
    best = torch.full(SIZE, -1e9)
    for _ in range(5):
        x = torch.randn(SIZE)
        total = total + x
        best = torch.maximum(best, x)
    (total + best).sum()


def _train() -> None:
    weight = torch.ones(SIZE, requires_grad=True)
    bias = torch.nn.Parameter(torch.zeros(SIZE))
    (torch.randn(SIZE) * weight + bias).pow(2).mean().backward()


def _write_later() -> None:
    mask = torch.ones(SIZE)
    (mask * torch.randn(SIZE)).sum()
    mask[:3] = 0
    (mask * torch.randn(SIZE)).sum()


def _read_otherwise() -> None:
    zeros = torch.zeros(SIZE)
    (torch.randn(SIZE) + zeros[0, 0] + torch.cat([zeros, torch.randn(SIZE)]).mean()).sum()


def _read_by_numpy() -> None:
    ones = torch.ones(SIZE)
    shared = ones.numpy()
    (torch.randn(SIZE) * ones).sum()
    shared[0] = 2


def _decide_the_shape() -> None:
    (torch.full(SIZE, 2.0) * torch.randn(64)).exp().sum()


@pytest.mark.parametrize(
    "program",
    [_accumulate, _train, _write_later, _read_otherwise, _read_by_numpy, _decide_the_shape],
)
def test_fills_that_are_needed(program: Any) -> None:
    found = [one for one in profile_patterns(_repeat(program)) if one.pattern in SINGLES]
    assert names(found) == []


SORTED = torch.linspace(0, 1, 4096)

# --- dtypes that every reader would accept narrower -------------------------------------------------


@pytest.mark.parametrize(
    ("body", "operator"),
    [
        (lambda: (torch.rand(8192) < 0.5).float() * torch.randn(8192), "_to_copy"),
        (lambda: (torch.rand(8192) < 0.5).double() @ torch.rand(8192).double(), "_to_copy"),
        (lambda: torch.randn(8192).double() - torch.rand(8192, dtype=torch.float64), "_to_copy"),
        (lambda: torch.arange(16000) / 7, "arange"),
        (
            lambda: F.embedding(
                torch.randint(0, 9, (8192,), dtype=torch.uint8).long(), torch.randn(9, 4)
            ),
            "_to_copy",
        ),
        (
            lambda: F.embedding((torch.rand(64, 64) < 0.5).cumsum(1), torch.randn(65, 4)),
            "cumsum",
        ),
    ],
)
def test_widened_without_need(body: Any, operator: str) -> None:
    found = only(profile_patterns(_repeat(body)), "heavy type")
    assert found.operator == f"aten::{operator}"


@pytest.mark.parametrize(
    "body",
    [
        # int64 is required
        lambda: F.cross_entropy(
            torch.randn(8192, 4), torch.randint(0, 4, (8192,), dtype=torch.uint8).long()
        ),
        lambda: torch.randn(4096, 9).gather(
            1, torch.randint(0, 9, (4096, 1), dtype=torch.uint8).long()
        ),
        # a mask is not accepted
        lambda: F.binary_cross_entropy_with_logits(
            torch.randn(8192, requires_grad=True), (torch.rand(8192) < 0.5).float()
        ).backward(),
        # the result would have another dtype, or none
        lambda: torch.randint(0, 256, (16384,), dtype=torch.uint8).float().mean(),
        lambda: torch.randint(0, 256, (128, 128), dtype=torch.uint8).float() @ torch.randn(128, 9),
        lambda: torch.randint(0, 256, (16384,), dtype=torch.uint8).int() * 300,
        # the usual way to scale pixels, and to compute indices
        lambda: torch.randint(0, 256, (16384,), dtype=torch.uint8).float() / 255,
        lambda: torch.randn(4096)[torch.searchsorted(SORTED, torch.rand(16384)) - 1],
        # accuracy
        lambda: torch.randn(16384).bfloat16().float() * torch.randn(16384),
        lambda: torch.randn(16384).double().sum(),
        lambda: torch.randn(16384).double().pow(2).sum(),
        lambda: torch.randn(16384).double() * 3,
        lambda: torch.randn(128, 128).double() @ torch.rand(128, dtype=torch.float64),
        # values that need the dtype
        lambda: (torch.arange(16000) << 40) + 1,
        lambda: torch.arange(16000) < torch.randint(0, 16000, (4, 1)),
    ],
)
def test_dtypes_that_are_needed(body: Any) -> None:
    assert "heavy type" not in patterns(profile_patterns(_repeat(body)))


# --- duplicates -------------------------------------------------------------------------------------


def test_a_result_of_the_step_before_that_still_exists() -> None:
    held: dict[str, Any] = {"x": None}

    def step() -> None:
        if held["x"] is not None:
            torch.softmax(held["x"], 1).sum()
        held["x"] = torch.randn(SIZE)
        held["y"] = torch.softmax(held["x"], 1)

    assert names(profile_steps(step, steps=6)) == [("duplicate", "_softmax")]


def test_a_result_of_the_step_before_that_is_gone() -> None:
    held: dict[str, Any] = {"x": None}

    def step() -> None:
        if held["x"] is not None:
            torch.softmax(held["x"], 1).sum()
        held["x"] = torch.randn(SIZE)
        torch.softmax(held["x"], 1).mul_(2)

    assert profile_steps(step, steps=6) == []


def test_a_second_copy_in_another_order() -> None:
    def twice() -> None:
        x = torch.randn(128, 64)
        first, second = x.t().contiguous(), x.t().contiguous()
        (first + second).sum()

    def written() -> None:
        x = torch.randn(128, 64)
        first, second = x.t().contiguous(), x.t().contiguous()
        (first + second.add_(1)).sum()

    assert only(profile_patterns(_repeat(twice)), "duplicate").operator == "aten::clone"
    assert profile_patterns(_repeat(written)) == []


def test_a_copy_that_is_overwritten() -> None:
    def unread() -> None:
        x = torch.randn(SIZE)
        y = x.clone()
        y[:] = x * 2
        y.sum()

    def read() -> None:
        x = torch.randn(SIZE)
        y = x.clone()
        y[:] = y.flip(0)
        (x + y).sum()

    def in_part() -> None:
        x = torch.randn(SIZE)
        y = x.clone()
        y[1:] = x[1:] * 2
        (x + y).sum()

    found = only(profile_patterns(_repeat(unread)), "duplicate")
    assert (found.operator, "overwritten" in found.detail) == ("aten::clone", True)
    assert profile_patterns(_repeat(read)) == []
    assert profile_patterns(_repeat(in_part)) == []


# --- checks -----------------------------------------------------------------------------------------


def test_checks_that_always_pass() -> None:
    def check() -> None:
        x = torch.randn(128, 128)
        assert torch.isfinite(x).all()
        assert not torch.isnan(x).any()

    found = [one for one in profile_patterns(_repeat(check)) if "guard" in one.pattern]
    assert {one.operator for one in found} == {"aten::mul", "aten::isnan"}


def test_checks_are_never_tested_as_if_they_returned_their_input() -> None:
    session = ProfilingSession(Options(prove=True))
    session.start()
    try:
        for _ in range(4):
            assert torch.isfinite(torch.randn(128, 128)).all()
            torch.full(SIZE, 2.0) * torch.randn(SIZE)
            torch.randn(SIZE).sum()
    finally:
        session.stop()
    found = session.findings.all()
    assert {"guard that never fires", "single value"} <= patterns(found)
    assert not {one.proof.get("certainty") for one in found} & {"proven", "tested"}
    assert not [note for note in session.result("finished")["notes"] if "Error" in note]


def test_checks_that_decide() -> None:
    def converge() -> None:
        error = torch.rand(128, 128)
        while not (error < 0.1).all():
            error = error * 0.5

    def select() -> None:
        x = torch.rand(128, 128)
        positive = x >= 0
        if positive.all():
            x[positive].sum()

    def rare() -> None:
        for number in range(8):
            x = torch.randn(128, 128)
            if number == 6:
                x[0, 0] = float("nan")
            torch.isnan(x).any()

    for program in (converge, select, rare):
        assert "guard that never fires" not in patterns(profile_patterns(_repeat(program)))


# --- strided slices ---------------------------------------------------------------------------------


def test_a_strided_slice_that_does_not_change() -> None:
    canvas = torch.zeros(128, 256)

    def program() -> None:
        for _ in range(4):
            canvas[:, ::2] = torch.randn(128, 128)
            canvas[:, 1::2] = 0.0

    found = only(profile_patterns(program), "redundant write")
    # The first write is the first access: the memory may have been uninitialized.
    assert (found.operator, found.count) == ("aten::fill_", 3)
    assert found.proof.get("certainty") != "proven"


def test_a_strided_slice_that_changes() -> None:
    canvas = torch.zeros(128, 256)

    def program() -> None:
        for number in range(6):
            canvas[:, 1::2] = float(number)
            canvas[:, ::2] = torch.randn(128, 128)

    assert "redundant write" not in patterns(profile_patterns(program))


# --- callers ----------------------------------------------------------------------------------------


def test_the_caller_of_a_repeated_computation_is_named() -> None:
    def table() -> Any:
        return torch.arange(8192.0).sin()

    def program() -> None:
        for _ in range(3):
            table().sum()  # the caller

    found = {one.operator: one for one in profile_patterns(program)}
    caller = found["aten::arange"].evidence["caller"]
    line = program.__code__.co_firstlineno + 2
    assert caller == {"file": __file__, "line": line}
    assert found["aten::arange"].place.line != line

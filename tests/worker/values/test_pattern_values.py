"""Single and frequent values, heavy types, structure and approximate patterns: edge cases."""

from __future__ import annotations

import json
import math
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

pytestmark = pytest.mark.torch

SINGLES = {"single zero", "single value"}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8]
)
def test_constants_of_every_dtype(dtype: Any) -> None:
    def program() -> None:
        numbers = torch.randint(1, 9, (16384,)).to(dtype)
        numbers - numbers

    assert only(profile_patterns(program), "single zero").operator == "aten::sub"


def test_the_value_is_reported() -> None:
    def constant(value: float) -> str:
        def program() -> None:
            torch.where(torch.rand(4096) < 2, value, 7.0)

        return only(profile_patterns(program), "single value").detail

    assert constant(2.5) == "every element is 2.5"
    assert constant(math.nan) == "every element is nan"


def test_zeros_have_two_signs() -> None:
    def detail(program: Any) -> str:
        return only(profile_patterns(program), "single zero").detail

    assert detail(lambda: torch.rand(4096) * 0) == "every element is zero"
    assert detail(lambda: torch.rand(4096) * -0.0) == "every element is zero, of negative sign"
    assert detail(lambda: torch.randn(32768) * 0) == "every element is zero, of either sign"
    assert patterns(profile_patterns(lambda: torch.randn(32768) * 0)) == {"single zero"}


def test_constants_that_were_asked_for() -> None:
    def program() -> None:
        torch.zeros(4096).clone()
        torch.full((64, 64), 3.0).contiguous()
        torch.ones(4096, dtype=torch.float64).float()
        torch.zeros_like(torch.randn(4096))
        torch.lt(torch.rand(8192), 2)  # a mask that is all true
        torch.tensor(3.0).expand(64, 64) / 7
        x = torch.randn(64, 64, requires_grad=True)
        x.mean().backward()
        x.sum().backward()

    assert SINGLES & patterns(profile_patterns(program)) == set()


def test_what_follows_from_a_constant_is_not_reported_again() -> None:
    def program() -> None:
        zero = torch.randn(64, 64) * 0.0
        zero = zero.abs()
        (zero @ torch.randn(64, 64)).exp().log()

    assert [one for one in names(profile_patterns(program)) if one[0] in SINGLES] == [
        ("single zero", "mul")
    ]


def test_a_constant_in_the_first_call_alone_is_the_start_of_a_loop() -> None:
    weight = torch.randn(64, 256)

    def program() -> None:
        hidden = torch.zeros(64, 64)
        for _ in range(8):
            hidden = (hidden @ weight)[:, :64].tanh() + torch.randn(64, 64)

    assert profile_patterns(program) == []


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_first_residual_of_a_solver_is_the_start_of_a_loop(restarts: int) -> None:
    matrix = torch.randn(128, 128)

    def program() -> None:
        for _ in range(restarts):
            guess = torch.zeros(128, 64)
            residual = 1.0 - matrix @ guess
            for _ in range(6):
                guess = guess + 0.01 * residual
                residual = residual - 0.01 * matrix @ residual

    zeros = [one for one in profile_patterns(program) if one.pattern == "single zero"]
    assert [one.operator for one in zeros] == ([] if restarts == 1 else ["aten::mm"])


def test_in_place_constants() -> None:
    def program() -> None:
        for _ in range(2):
            memory = torch.rand(4096) + 1
            memory.exp()
            memory.mul_(0)

    assert names(profile_patterns(program)) == [("single zero", "mul_")]


# --- frequent values --------------------------------------------------------------------------------


def _mostly(value: float, share: float, count: int = 32768, *, first: float | None = None) -> Any:
    numbers = torch.rand(count) + 2
    numbers[torch.rand(count) < share] = value
    if first is not None:
        numbers[0] = first
    return numbers


@pytest.mark.parametrize(
    ("value", "share", "wanted"),
    [
        (0.0, 0.95, True),
        (7.0, 0.95, True),
        (-math.inf, 0.95, True),
        (0.0, 0.85, False),
        (7.0, 0.6, False),
    ],
)
@pytest.mark.parametrize("first", [None, 2.5])
def test_a_value_that_is_nearly_everywhere(
    value: float, share: float, wanted: bool, first: float | None
) -> None:
    def program() -> None:
        for _ in range(3):
            torch.maximum(_mostly(value, share, first=first), torch.tensor(-math.inf)) + 0.0
            _mostly(value, share, first=first).mul(1.5)

    assert ("frequent values" in patterns(profile_patterns(program))) == wanted


def test_zeros_of_both_signs_count() -> None:
    def program() -> None:
        for _ in range(3):
            torch.randn(32768) * (torch.rand(32768) < 0.05)

    found = only(profile_patterns(program), "frequent values")
    assert found.operator == "aten::mul"
    assert "% of the elements are 0" in found.detail


def test_activations_and_masks_are_ordinary() -> None:
    def program() -> None:
        for _ in range(3):
            hidden = torch.randn(128, 256)
            F.relu(hidden - 1.9)  # 97 % zero
            F.dropout(F.relu(hidden), 0.6)  # 80 % zero
            distance = torch.cdist(hidden, hidden)
            torch.exp(-distance) * (distance < 22)
            hidden.masked_fill(torch.rand(128, 256) < 0.95, -math.inf)
            torch.lt(torch.rand(256, 256), 0.01)
            (torch.rand(256, 256) < 0.1).float().mean()
            torch.randn(256, 256).triu(200)

    assert "frequent values" not in patterns(profile_patterns(program))
    dead = only(profile_patterns(lambda: F.relu(torch.randn(128, 512) - 3.5)), "frequent values")
    assert dead.operator == "aten::relu"


@pytest.mark.parametrize("by", ["rows", "columns"])
@pytest.mark.parametrize(("share", "reported"), [(0.8, True), (0.7, False)])
def test_zeros_in_whole_rows(by: str, share: float, reported: bool) -> None:
    def program() -> None:
        for _ in range(4):
            kept = (torch.arange(128) >= share * 128).float()
            kept = kept[:, None] if by == "rows" else kept
            torch.relu(torch.randn(2, 128, 128).abs() * kept)

    assert ("frequent values" in patterns(profile_patterns(program))) == reported


def test_gradients_and_what_is_computed_from_them_are_not_reported() -> None:
    def program() -> None:
        table = torch.nn.Embedding(4000, 16)
        optimizer = torch.optim.Adam(table.parameters(), foreach=False)
        for _ in range(4):
            optimizer.zero_grad()
            table(torch.randint(0, 4000, (16,))).tanh().mean().backward()
            optimizer.step()

    assert patterns(profile_patterns(program)) == {"sparse gradient"}


# --- heavy types ------------------------------------------------------------------------------------


def _fits(made: Any) -> str:
    """Return the findings about a tensor that is made in this way and read twice."""

    def program() -> None:
        for _ in range(3):
            numbers = made()
            (numbers == 3).sum()
            (numbers > 2).sum()

    found = [one for one in profile_patterns(program) if one.pattern == "heavy type"]
    return found[0].evidence["fits"] if found else ""


@pytest.mark.parametrize(
    ("made", "fits"),
    [
        (lambda: torch.lt(torch.rand(8192), 0.5).to(torch.float32), "bool"),
        (lambda: (torch.rand(8192) < 0.5).bfloat16().repeat(1), "bool"),
        (lambda: torch.where(torch.rand(8192) < 0.5, 1.0, 0.0), "bool"),
        (lambda: torch.floor(torch.rand(8192) * 200), "uint8"),
        (lambda: torch.round(torch.randn(8192) * 20), "int8"),
        (lambda: torch.round(torch.randn(8192) * 5000), "int16"),
        (lambda: torch.round(torch.randn(8192) * 1e6), ""),
        (lambda: torch.randint(0, 200, (8192,)) / 64, "bfloat16"),
        (lambda: torch.randint(0, 2000, (8192,)) / 64, "float16"),
        (lambda: torch.randn(8192), ""),
        (lambda: torch.randn(8192) + 1, ""),
        (
            lambda: torch.randint(0, 900, (8192,)) * torch.full((1,), 0.5, dtype=torch.float64),
            "float32",
        ),
        (lambda: torch.randint(0, 99, (32768,)) + 1, "uint8"),
        (lambda: torch.randint(-99, 99, (32768,)) + 1, "int8"),
        (lambda: torch.randint(0, 40000, (32768,)) + 1, ""),
        (lambda: torch.randint(0, 40000, (1 << 18,)) + 1, "int32"),
        (lambda: torch.randint(0, 1 << 40, (1 << 18,)) + 1, ""),
        (lambda: torch.randint(0, 99, (4096,)) + 1, ""),
    ],
)
def test_the_narrowest_dtype_that_holds_it(made: Any, fits: str) -> None:
    assert _fits(made) == fits


def test_narrow_numbers_that_are_no_waste() -> None:
    def program() -> None:
        for _ in range(3):
            image = torch.randint(0, 256, (64, 256), dtype=torch.uint8).float()  # asked for
            half = torch.randn(64, 256).bfloat16().float()  # mixed precision
            additive = torch.zeros(128, 128).masked_fill(torch.rand(128, 128) < 0.5, -10000.0)
            infinite = torch.full((128, 128), -math.inf).triu(1)
            indices = torch.randn(512, 512).argmax(1), torch.randn(512, 512).topk(64).indices
            for kept in (image, half, additive, infinite, *indices):
                kept.sum()
                (kept > 1).any()
            once = torch.randn(64, 256).round()  # on its way through a formula
            once.mul_(0.3)

    assert "heavy type" not in patterns(profile_patterns(program))


def test_what_follows_from_narrow_inputs_is_not_reported() -> None:
    def program() -> None:
        for _ in range(3):
            mask = (torch.rand(8192) < 0.5).float()
            other = mask * mask
            for kept in (mask, other, 1 - other):
                kept.sum()
                kept.mean()

    assert only(profile_patterns(program), "heavy type").operator == "aten::_to_copy"


# --- structured -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "detail"),
    [
        (lambda: torch.randn(64, 64).repeat(4, 1, 1), "dimension 0"),
        (lambda: torch.randn(16, 1, 64).repeat(1, 8, 1), "dimension 1"),
        (lambda: torch.randn(64, 64, 1).repeat(1, 1, 4), "dimension 2"),
        (lambda: torch.randn(64, 1, 1).repeat(1, 8, 16), "dimension 1, 2"),
        (lambda: torch.randn(1, 64, 1).repeat(8, 1, 16), "dimension 0, 2"),
        (lambda: torch.randn(1, 64).expand(128, 64).contiguous(), "dimension 0"),
        (lambda: torch.randn(1, 64).expand(128, 64).exp(), "dimension 0"),
        (lambda: torch.ones(64, 64) @ torch.randn(64, 64), "dimension 0"),
        (lambda: torch.randn(6000, 1).bfloat16().repeat(1, 2), "dimension 1"),
        (lambda: torch.randn(20000, 1, 2).repeat(1, 3, 1), "dimension 1"),
    ],
)
def test_constant_along_a_dimension(made: Any, detail: str) -> None:
    found = only(profile_patterns(lambda: [made() for _ in range(2)]), "structured")
    assert f"constant along {detail}:" in found.detail
    assert 0.4 < found.bytes_wasted / found.bytes_written < 1


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.randn(64, 64).exp(),
        lambda: torch.cat([torch.randn(64, 64).exp()] * 2),
        lambda: torch.randn(8, 16, 32).repeat(2, 1, 1),  # period of eight rows, no dimension
        lambda: F.interpolate(torch.randn(1, 2, 48, 48), scale_factor=2),
        lambda: (torch.rand(64, 1) < 0.5).repeat(1, 512),
        lambda: torch.zeros(64, 64) @ torch.randn(64, 64),
        lambda: torch.randn(64, 1).expand(64, 64) + torch.randn(64, 64),
        lambda: torch.arange(8192),
        lambda: torch.arange(8192) * 2 + 1,
        lambda: torch.linspace(0, 1, 8192),
    ],
)
def test_values_without_structure(made: Any) -> None:
    assert "structured" not in patterns(profile_patterns(lambda: [made() for _ in range(2)]))


def test_gradients_are_constant_by_nature() -> None:
    def program() -> None:
        x = torch.randn(64, 64, requires_grad=True)
        (x.mean(1).sum() + x.exp().mean(0).sum()).backward()

    assert profile_patterns(program) == []


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda: torch.nonzero(torch.rand(8192) < 2), True),
        (lambda: torch.rand(8192).cumsum(0).argsort(), True),
        (lambda: torch.rand(8192).double().square().sign().cumsum(0), True),
        (lambda: torch.nonzero(torch.rand(8192) < 0.5), False),
        (lambda: torch.rand(8192).argsort(), False),
        (lambda: torch.rand(8192).mul(math.nan), False),
    ],
)
def test_lines(made: Any, wanted: bool) -> None:
    found = profile_patterns(lambda: [made() for _ in range(2)])
    assert any(one.pattern == "structured" and "a line" in one.detail for one in found) == wanted


# --- approximate ------------------------------------------------------------------------------------


def test_approximate_findings_are_opt_in() -> None:
    def program() -> None:
        for _ in range(2):
            300 + 0.01 * torch.randn(64, 64)

    assert profile_patterns(program) == []
    assert only(profile_patterns(program, approximate=True), "approximate").operator == "aten::add"


def test_distant_values_are_not_approximate() -> None:
    def program() -> None:
        for _ in range(2):
            torch.randn(64, 64) + 1
            300 + 3 * torch.randn(64, 64)
            torch.rand(64, 64) * math.inf

    assert "approximate" not in patterns(profile_patterns(program, approximate=True))


# --- every pattern ----------------------------------------------------------------------------------


def test_evidence_is_small_and_plain() -> None:
    def program() -> None:
        numbers = torch.randn(1 << 16)
        numbers[:9] = math.nan
        numbers[9:20] = -math.inf
        numbers * (torch.rand(1 << 16) < 0.02)
        torch.view_as_complex(torch.randn(4096, 2)) * 0

    found = profile_patterns(program)
    assert {"frequent values"} <= patterns(found)
    for one in found:
        plain = one.as_dict()
        recipe = json.dumps(plain.pop("recipe", None), allow_nan=False)
        assert len(recipe) < 400_000  # masks are kept bit for bit, up to 256 KiB
        assert len(json.dumps(plain, allow_nan=False)) < 6000
        assert len(one.evidence["sample"]) <= 12
        assert sum(one.evidence.get("histogram", {"counts": [0]})["counts"]) <= 4096


def test_noncontiguous_layouts_are_scanned_in_their_order() -> None:
    def program() -> None:
        for _ in range(2):
            image = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
            image - image
            torch.randn(64, 64).t() * 0.0
            strided = torch.randn(64, 128)[:, ::2]
            strided.mul_(0)  # has gaps: counted, not looked at

    assert names(profile_patterns(program)) == [("single zero", "sub"), ("single zero", "mul")]


def test_steps_that_end_without_an_optimiser() -> None:
    def step() -> None:
        torch.randn(64, 64) * 0.0

    found = profile_steps(step, steps=3)
    assert found[0].steps == [1, 2, 3]

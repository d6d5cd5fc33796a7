"""Repeated chains, copies, scattered zeros and indexed fills: what is found, and near misses that must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.worker.values.pattern_profiles import only, patterns, profile_patterns  # noqa: E402
from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.patterns.uniform_values import Structured  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch


def _repeat(body: Callable[[], object], times: int = 5) -> Callable[[], None]:
    def program() -> None:
        for _ in range(times):
            body()

    return program


def _lines(found: Any) -> list[int]:
    return sorted(finding.place.line for finding in found if finding.pattern == "duplicate")


def test_the_first_and_the_last_of_a_repeated_chain() -> None:
    def table() -> Any:
        index = torch.arange(100.0)
        distance = index[:, None] - index
        near = torch.exp(distance / 10)
        return near * 2 + 1

    first = table.__code__.co_firstlineno + 2

    def use() -> None:
        (table() @ torch.randn(100, 8)).sum()

    found = profile_patterns(_repeat(use))
    assert _lines(found) == [first, first + 2]


def test_a_transposed_copy_of_an_unchanged_source() -> None:
    weight = torch.randn(64, 128)
    found = only(profile_patterns(_repeat(lambda: weight.t().contiguous().sum())), "duplicate")
    assert "a second copy" in found.detail

    def changed() -> None:
        weight.t().contiguous().sum()
        weight.mul_(0.9)

    assert profile_patterns(_repeat(changed)) == []

    def used() -> None:
        weight.t().contiguous().mul_(2)

    assert profile_patterns(_repeat(used)) == []


def test_a_copy_back_to_the_original_order() -> None:
    def there_and_back() -> None:
        numbers = torch.randn(64, 128)
        transposed = numbers.t().contiguous()
        (transposed.t().contiguous() + numbers).sum()

    assert (
        "back to the order" in only(profile_patterns(_repeat(there_and_back)), "duplicate").detail
    )

    def changed() -> None:
        numbers = torch.randn(64, 128)
        transposed = numbers.t().contiguous()
        transposed.mul_(2)
        (transposed.t().contiguous() + numbers).sum()

    assert profile_patterns(_repeat(changed)) == []


def test_a_copy_that_is_only_read_before_its_source_is_written() -> None:
    numbers = torch.randn(128, 64)

    def read_before() -> None:
        old = numbers.clone()
        numbers.add_(old.mean(0))

    found = only(profile_patterns(_repeat(read_before)), "duplicate")
    assert "only read before its source was written" in found.detail


@pytest.mark.parametrize(
    "use",
    [
        lambda old, numbers: numbers - old,
        lambda old, _: old[3, 4].item(),
        torch.equal,
        lambda old, _: old.tolist(),
        lambda old, _: old.numpy(),
    ],
)
def test_a_copy_that_is_read_after_its_source_is_written(use: Any) -> None:
    numbers = torch.randn(128, 64)

    def read_after() -> None:
        old = numbers.clone()
        numbers.add_(old.mean(0))
        use(old, numbers)

    assert profile_patterns(_repeat(read_after)) == []


def test_a_fill_whose_elements_are_read_as_numbers_is_used() -> None:
    def program() -> None:
        zeros = torch.zeros(64, 128)
        zeros[0, 0].item()
        zeros.copy_(torch.randn(64, 128))

    assert profile_patterns(_repeat(program)) == []


def test_scattered_elements() -> None:
    def one_hot() -> None:
        hot = torch.zeros(200, 50)
        hot[torch.arange(200), torch.randint(0, 50, (200,))] = torch.rand(200)
        (hot @ torch.randn(50, 8)).sum()

    assert "98 %" in only(profile_patterns(_repeat(one_hot)), "frequent values").detail

    def dense() -> None:
        rows = torch.zeros(200, 50)
        rows.scatter_(1, torch.rand(200, 50).argsort(1)[:, :20], torch.rand(200, 20))
        (rows @ torch.randn(50, 8)).sum()

    def accumulated() -> None:
        counts = torch.zeros(20000)
        for _ in range(3):
            counts.scatter_add_(0, torch.randint(0, 20000, (900,)), torch.rand(900))
        counts.sum()

    def unread() -> None:
        torch.zeros(20000)[torch.randint(0, 20000, (900,))] = 1.0

    for program in (dense, accumulated, unread):
        assert profile_patterns(_repeat(program)) == [], program.__name__


def test_indices_that_reach_every_element() -> None:
    def inverse() -> None:
        order = torch.randperm(8000)
        places = torch.zeros(8000)
        places[order] = torch.rand(8000)
        places.sum()

    found = only(profile_patterns(_repeat(inverse)), "dead initialisation")
    assert "at all indices" in found.detail

    def columns() -> None:
        places = torch.zeros(80, 100)
        places[:, torch.randperm(100)] = torch.rand(80, 100)
        places.sum()

    found = only(profile_patterns(_repeat(columns)), "dead initialisation")
    assert "at all indices" in found.detail

    def some() -> None:
        places = torch.zeros(8000)
        places[torch.randperm(8000)[:7999]] = torch.rand(7999)
        places.sum()

    def mask() -> None:
        places = torch.zeros(8000)
        places[torch.ones(8000, dtype=torch.bool)] = torch.rand(8000)
        places.sum()

    def accumulate() -> None:
        places = torch.zeros(8000)
        places.index_put_((torch.randperm(8000),), torch.rand(8000), accumulate=True)
        places.sum()

    for program in (some, mask, accumulate):
        assert "dead initialisation" not in patterns(profile_patterns(_repeat(program)))


def test_an_assignment_in_place_to_a_slice_is_not_a_write() -> None:
    numbers = torch.randn(64, 64, 16)

    def program() -> None:
        numbers[8:56] *= 0.9
        numbers[:, :, 3] += 0.1

    assert profile_patterns(_repeat(program)) == []


def test_copies_of_one_tensor_in_a_stack() -> None:
    row = torch.randn(64)
    found = only(profile_patterns(lambda: torch.stack([row] * 128).sum()), "structured")
    assert found.operator == "aten::stack"
    batch = torch.randn(1, 8192)
    assert profile_patterns(lambda: torch.cat([batch] * 2).sum()) == []


def test_integers_that_are_used_as_indices_keep_their_dtype() -> None:
    table = torch.randn(50)

    def indices(use: Any) -> Callable[[], None]:
        def program() -> None:
            bucket = torch.randint(0, 10**6, (10000,)) % 50
            (bucket == 0).sum()
            use(bucket)

        return program

    found = only(profile_patterns(_repeat(indices(lambda bucket: bucket / 7))), "heavy type")
    assert found.operator == "aten::remainder"
    for use in (lambda bucket: table.gather(0, bucket), lambda bucket: table[bucket]):
        assert profile_patterns(_repeat(indices(use))) == []


def test_a_conjugated_copy_is_not_a_copy_of_the_same_bits() -> None:
    numbers = torch.randn(200, 64, dtype=torch.complex64)
    real = torch.randn(20000)

    def conjugated() -> None:
        part = numbers[50:].conj().clone()
        (part * torch.randn(150, 64)).sum()

    def negated() -> None:
        (torch._neg_view(real[1000:]).clone() * torch.randn(19000)).sum()

    for program in (conjugated, negated):
        assert profile_patterns(program) == [], program.__name__


def test_equal_rows_behind_a_small_constant() -> None:
    weight = torch.randn(1, 64)

    def time_of_a_step() -> None:
        (torch.full((256, 1), float(torch.rand(()))) @ weight).sin().sum()

    found = only(profile_patterns(_repeat(time_of_a_step)), "structured")
    assert found.operator == "aten::mm"

    def initial_state() -> None:
        hidden = torch.zeros(32, 64)
        (torch.addmm(torch.randn(256), hidden, torch.randn(64, 256)) * 2).sum()

    assert profile_patterns(_repeat(initial_state)) == []


def test_a_comparison_with_a_number_may_need_double_precision() -> None:
    def compared(other: Any) -> Callable[[], None]:
        def program() -> None:
            (torch.randn(20000).double() > other).sum()

        return program

    assert profile_patterns(_repeat(compared(0.1))) == []
    wide = torch.randn(20000, dtype=torch.float64)
    found = only(profile_patterns(_repeat(compared(wide))), "heavy type")
    assert found.operator == "aten::_to_copy"


def test_a_power_with_a_tensor_as_exponent_is_observed() -> None:
    numbers, exponents = torch.rand(64, 128), torch.ones(64, 128)
    found = only(profile_patterns(_repeat(lambda: numbers.pow_(exponents))), "redundant write")
    assert found.operator == "aten::pow_"
    assert profile_patterns(_repeat(lambda: numbers.pow_(1))) == []


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_left_alone() -> None:
    parts = torch.nested.nested_tensor([torch.randn(100, 50), torch.randn(80, 50)])
    assert profile_patterns(lambda: (parts * 2).to_padded_tensor(0.0).sum()) == []


def test_an_error_in_a_pattern_reaches_neither_the_program_nor_the_other_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: object, observation: object) -> None:
        raise RuntimeError("wrong")

    monkeypatch.setattr(Structured, "observe", fail)
    session = ProfilingSession(Options(prove=False))
    session.start()
    kept = torch.randn(64, 128)
    for _ in range(3):
        kept.copy_(kept.clone())
    session.stop()
    assert [one.pattern for one in session.findings.all()] == ["redundant write"]
    (note,) = [one for one in session.notes if "wrong" in one]
    assert note.startswith("the pattern structured was not evaluated from aten::")

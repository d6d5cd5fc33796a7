"""The batch sizes that a search tries, and its conclusions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.bench.batch_search import (
    BatchSearch,
    BatchTry,
    Outcome,
    multiple_at,
    next_size,
    outcomes_of,
    size_that_pays,
)
from torchyard.core.study import Workload

GPT = Workload(suite="models", name="gpt")


def tried(capacity: int, *, most: int = 1024, refuses: int = 0) -> dict[int, Outcome]:
    """A search on a machine that holds so many samples; up to `refuses` the workload does not run."""
    outcomes: dict[int, Outcome] = {}
    while (size := next_size(outcomes, largest=most)) is not None:
        assert size not in outcomes, "a size is tried once"
        assert 1 <= size <= most
        if size <= refuses:
            outcomes[size] = "refused"
        else:
            outcomes[size] = "fits" if size <= capacity else "too-large"
    return outcomes


def largest(outcomes: dict[int, Outcome]) -> int | None:
    return max((size for size, come in outcomes.items() if come == "fits"), default=None)


@pytest.mark.parametrize(
    ("capacity", "sizes"),
    [
        (0, [1]),
        (1, [1, 2]),
        (3, [1, 2, 4, 3]),
        (5, [1, 2, 4, 8, 6, 5]),
        (15, [1, 2, 4, 8, 16, 12, 14, 15]),
        (16, [1, 2, 4, 8, 16, 32, 24, 20, 18]),
        (100, [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104]),
    ],
)
def test_doubled_and_then_halved_in_between(capacity: int, sizes: list[int]) -> None:
    assert list(tried(capacity)) == sizes


@given(capacity=st.integers(1, 5000), most=st.integers(1, 4096))
def test_the_answer_is_the_largest_multiple_that_fits(capacity: int, most: int) -> None:
    outcomes = tried(capacity, most=most)
    size = largest(outcomes)
    assert size is not None
    if capacity >= most:
        assert size == most
        return
    step = multiple_at(size)
    assert size % step == 0
    assert size <= capacity < min(size + step, most)
    assert len(outcomes) <= 2 * most.bit_length() + 3
    assert step <= max(1, size / 8), "no coarser than an eighth"


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_the_largest_allowed_size_is_tried_itself(most: int) -> None:
    assert largest(tried(10**6, most=most)) == most


def test_a_size_that_is_too_small_does_not_end_the_search() -> None:
    """Batch norm refuses to train with one image."""
    outcomes = tried(6, refuses=1)
    assert outcomes[1] == "refused"
    assert largest(outcomes) == 6


def test_a_workload_that_never_runs_is_given_up() -> None:
    assert list(tried(100, refuses=10**6)) == [1, 2, 4]
    assert list(tried(100, refuses=10**6, most=2)) == [1, 2]
    assert next_size({1: "too-large"}, largest=1024) is None
    assert next_size({1: "refused", 2: "too-large"}, largest=1024) is None


def test_a_failure_of_another_kind_above_a_size_that_fits_bounds_it() -> None:
    assert next_size({1: "fits", 2: "fits", 4: "refused"}, largest=64) == 3


def one(size: int, variant: str = "eager", rate: float | None = None, kind: str = "") -> BatchTry:
    return BatchTry(
        batch_size=size,
        variant=variant,
        fits=not kind,
        kind=kind,
        iteration_ns=None if rate is None else size / rate * 1e9,
    )


def search(*tries: BatchTry, most: int = 1024) -> BatchSearch:
    names = tuple(dict.fromkeys(each.variant for each in tries))
    return BatchSearch(workload=GPT, variants=names, tries=tries, most=most)


def test_a_size_fits_when_it_fits_with_every_variant() -> None:
    tries = [one(1), one(1, "inductor"), one(2), one(2, "inductor", kind="out-of-memory")]
    assert outcomes_of(tries) == {1: "fits", 2: "too-large"}
    outcome = search(*tries)
    assert outcome.batch_size == 1
    assert outcome.obstacle == tries[-1]
    raised = [one(1, kind="raised"), one(2), one(2, "inductor", kind="timeout")]
    assert outcomes_of(raised) == {1: "refused", 2: "refused"}


def test_notes_on_the_answer() -> None:
    bound = search(one(64), one(128, kind="out-of-memory"), one(96), one(112, kind="out-of-memory"))
    assert (bound.batch_size, bound.multiple) == (96, 8)
    assert bound.obstacle is not None
    assert bound.obstacle.batch_size == 112
    free = search(one(64), one(100), most=100)
    assert (free.batch_size, free.multiple, free.obstacle) == (100, 1, None)
    none = search(one(1, kind="out-of-memory"))
    assert (none.batch_size, none.multiple) == (None, 1)


def test_where_a_larger_batch_stops_paying_off() -> None:
    rates = {1: 100.0, 2: 180.0, 4: 300.0, 8: 390.0, 16: 400.0, 32: 350.0}
    outcome = search(*(one(size, rate=rate) for size, rate in rates.items()))
    assert size_that_pays(outcome, "eager") == 8
    assert size_that_pays(outcome, "inductor") is None
    both = (one(1, rate=10.0), one(1, "inductor", rate=10.0), one(2, rate=40.0))
    assert size_that_pays(search(*both, one(2, "inductor", kind="out-of-memory")), "eager") == 1
    assert one(4, rate=300.0).samples_per_second == pytest.approx(300.0)
    assert one(4).samples_per_second is None

"""The search of `torchyard reduce` on simulated programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from torchyard.errors import NothingToDo, Untrustworthy
from torchyard.reduce.model import Metric
from torchyard.reduce.search import ReductionSearch, Round, Sizes, Unusable

COUNT = 24
EAGER_NS = 1e5


class Simulated:
    """A model of operators that each take the same time, some of which lose time when compiled."""

    def __init__(
        self,
        losses: Callable[[frozenset[int]], float],
        *,
        seed: int = 1,
        whole_loss: float | None = None,
        broken: frozenset[int] = frozenset(),
        smallest: int = 0,
    ) -> None:
        self.losses = losses
        self.broken = broken
        self.smallest = smallest
        self.chance = random.Random(seed)
        self.all = frozenset(range(COUNT))
        self.whole_loss = losses(self.all) if whole_loss is None else whole_loss

    def measure(self, units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
        if units and self.broken & set(units) and len(units) < COUNT:
            raise Unusable("no kernel")
        share = 1.0
        for old, new in sizes:
            if new < self.smallest:
                raise Unusable("too small")
            share *= new / old
        loss = share * self.losses(frozenset(units)) if units else self.whole_loss
        eager = share * EAGER_NS * max(1, len(units))

        def noisy(value: float) -> float:
            slow = 4.0 if self.chance.random() < 0.1 else 1.0
            return value * slow * (1.0 + abs(self.chance.gauss(0.0, 0.05)))

        result = []
        for _ in range(rounds):
            machine = 1.0 + 2.0 * self.chance.random()
            base = machine * EAGER_NS * COUNT
            result.append(
                (
                    noisy(base),
                    noisy(base + machine * self.whole_loss),
                    noisy(machine * eager),
                    noisy(machine * (eager + loss)),
                )
            )
        return result

    def search(self, lengths: Sequence[int] = (), seconds: float = 60.0) -> ReductionSearch:
        search = ReductionSearch(COUNT, self.measure, seconds=seconds, listener=lambda _: None)
        search.run(lambda _: lengths)
        return search


class Exact:
    """A model whose peak memory or errors are known without noise; some units matter together."""

    def __init__(self, needed: frozenset[int], size: float, *, whole: float | None = None) -> None:
        self.needed = needed
        self.size = size
        self.whole = size if whole is None else whole
        self.programs: list[tuple[Sequence[int], Sizes]] = []

    def measure(self, units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
        assert rounds == 1
        assert (tuple(units), sizes) not in self.programs
        self.programs.append((tuple(units), sizes))
        share = 1.0
        for old, new in sizes:
            share *= new / old
        own = self.size if self.needed <= set(units) else 0.0
        return [(0.0, self.whole, 0.0, self.whole if not units else share * own)]

    def search(self, metric: Metric, lengths: Sequence[int] = ()) -> ReductionSearch:
        search = ReductionSearch(
            COUNT, self.measure, seconds=60.0, listener=lambda _: None, metric=metric
        )
        search.run(lambda _: lengths)
        return search


@pytest.mark.parametrize("metric", ["memory", "wrong"])
def test_units_that_matter_without_noise(metric: Metric) -> None:
    assert Exact(frozenset({5}), 1e6).search(metric).units == (5,)
    assert Exact(frozenset({2, 21}), 1e6).search(metric).units == (2, 21)
    assert Exact(frozenset({2}), 1e6).search(metric, (64,)).sizes == ((64, 8),)


def test_a_small_error_of_a_part_counts() -> None:
    """The error of a part can be any share of that of the model."""
    assert Exact(frozenset({5}), 1e-6, whole=10.0).search("wrong").units == (5,)
    with pytest.raises(Untrustworthy, match="does not show the difference"):
        Exact(frozenset({5}), 1e-6, whole=10.0).search("memory")


def test_nothing_to_reduce_without_noise() -> None:
    with pytest.raises(NothingToDo, match="does not use more memory"):
        Exact(frozenset({5}), 0.0).search("memory")
    with pytest.raises(NothingToDo, match="are not wrong"):
        Exact(frozenset({5}), 0.0).search("wrong")


def test_memory_within_the_margin_does_not_count() -> None:
    def measure(units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
        return [(1e6, 1.009e6, 1e6, 1.009e6)] * rounds

    with pytest.raises(NothingToDo):
        ReductionSearch(COUNT, measure, seconds=60.0, listener=lambda _: None, metric="memory").run(
            lambda _: []
        )


def one_slow(slow: int, loss: float = 1e7) -> Callable[[frozenset[int]], float]:
    return lambda units: loss if slow in units else 0.0


def test_the_slow_operator_is_found() -> None:
    right = 0
    for seed in range(30):
        slow = random.Random(f"slow/{seed}").randrange(COUNT)
        search = Simulated(one_slow(slow), seed=seed).search()
        assert slow in search.units
        right += search.units == (slow,)
    assert right >= 28


def test_operators_that_lose_time_only_together() -> None:
    search = Simulated(lambda units: 1e7 if units >= {4, 19} else 0.0).search()
    assert search.units == (4, 19)


def test_operators_that_cannot_run_by_themselves_are_kept_with_others() -> None:
    search = Simulated(one_slow(7), broken=frozenset({20})).search()
    assert search.units == (7,)


@pytest.mark.parametrize("loss", [0.0, -1e6])
def test_a_model_without_a_loss(loss: float) -> None:
    with pytest.raises(NothingToDo, match="not shown to be slower"):
        Simulated(lambda _: loss).search()


def test_a_graph_that_does_not_show_the_loss() -> None:
    with pytest.raises(Untrustworthy, match="does not show the difference"):
        Simulated(lambda _: 0.0, whole_loss=1e7).search()


def test_dimensions_are_shortened_while_they_can() -> None:
    search = Simulated(one_slow(3), smallest=32).search(lengths=(256, 64))
    assert dict(search.sizes)[256] in {32, 128}
    assert all(new >= 32 for _, new in search.sizes)


def test_dimensions_that_matter_are_kept() -> None:
    class Fixed(Simulated):
        def measure(self, units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
            if sizes:
                self.losses = lambda _: 0.0
            return super().measure(units, sizes, rounds)

    assert Fixed(one_slow(3)).search(lengths=(256,)).sizes == ()


def test_dimensions_are_not_shortened_to_mere_overhead() -> None:
    class Overhead(Simulated):
        def measure(self, units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
            result = super().measure(units, sizes, rounds)
            calls_ns = 2e6 if units else 0.0
            return [(a, b, c, d + calls_ns) for a, b, c, d in result]

    search = Overhead(one_slow(3, loss=1e6), whole_loss=3e6).search(lengths=(1024,))
    assert all(new >= 64 for _, new in search.sizes)
    # A relative loss that only grows with shorter dimensions would allow 8.


def test_the_time_limit_keeps_what_was_not_examined() -> None:
    search = Simulated(one_slow(3)).search(seconds=0.0)
    assert not search.complete
    assert 3 in search.units

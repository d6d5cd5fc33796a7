"""The search of `torchyard reduce` on simulated programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from torchyard.errors import NothingToDo, Untrustworthy
from torchyard.reduce.model import Group, Metric, Reduced, Sides
from torchyard.reduce.report import reduced_text
from torchyard.reduce.search import ReductionSearch, Round, Sizes, Unusable

COUNT = 24
NAMES = [f"operator{number}" for number in range(COUNT)]
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
        search = ReductionSearch(NAMES, self.measure, seconds=seconds, listener=lambda _: None)
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
            NAMES, self.measure, seconds=60.0, listener=lambda _: None, metric=metric
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
        ReductionSearch(NAMES, measure, seconds=60.0, listener=lambda _: None, metric="memory").run(
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


def part(share: float) -> Group:
    """Return a part that loses a share of the time of the baseline."""
    loss_ns = share * EAGER_NS * COUNT
    return Group(number=1, name="part", sources=(), loss_ns=loss_ns, share=share)


@pytest.mark.parametrize("whole_loss", [4e6, 0.0, -1e6], ids=["slower", "same", "faster"])
def test_a_part_loses_time_while_the_model_need_not(whole_loss: float) -> None:
    model = Simulated(one_slow(7, loss=5e5), whole_loss=whole_loss)
    search = ReductionSearch(
        NAMES,
        model.measure,
        seconds=60.0,
        listener=lambda _: None,
        start=(5, 6, 7, 8),
        part=part(5e5 / (EAGER_NS * COUNT)),
    )
    whole, *_, reduced = search.run(lambda _: ())
    assert search.units == (7,)
    assert (reduced.share is None) == (whole_loss <= 0.0)
    assert whole.model_loss is None


def test_a_part_without_a_loss() -> None:
    model = Simulated(one_slow(7))
    search = ReductionSearch(
        NAMES, model.measure, seconds=60.0, listener=lambda _: None, start=(1, 2), part=part(0.2)
    )
    with pytest.raises(Untrustworthy, match="operators of part 1 do not show its loss") as raised:
        search.run(lambda _: ())
    assert "without --part" in raised.value.hint


def test_repeated_layers_are_one() -> None:
    """Each of six layers of four operators loses time in its third operator."""
    model = Simulated(lambda units: 1e6 * sum(unit % 4 == 2 for unit in units))
    search = ReductionSearch(
        [f"operator{unit % 4}" for unit in range(COUNT)],
        model.measure,
        seconds=60.0,
        listener=lambda _: None,
    )
    _, _, cut, unrepeated, _ = search.run(lambda _: ())
    assert len(search.units) == 1
    assert search.units[0] % 4 == 2
    assert (unrepeated.share or 1.0) < 0.4 < (cut.share or 0.0)


def test_repetitions_that_lose_time_only_together_remain() -> None:
    model = Simulated(lambda units: 1e7 if units >= {4, 19} else 0.0)
    search = ReductionSearch(["op"] * COUNT, model.measure, seconds=60.0, listener=lambda _: None)
    search.run(lambda _: ())
    assert search.units == (4, 19)


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


@pytest.mark.parametrize(
    ("loss", "part", "contradictory"),
    [(1.0, "", False), (3.0, "", True), (3.0, "a part", False)],
)
def test_operators_that_lose_more_than_their_model(
    loss: float, part: str, contradictory: bool
) -> None:
    model = Sides(baseline=1.0, candidate=2.0)
    program = Sides(baseline=1.0, candidate=1.0 + loss, model_loss=1.0)
    result = Reduced(
        workload="net",
        baseline="eager",
        candidate="inductor",
        operators_before=1,
        operators=("op",),
        sizes=(),
        graphs=1,
        end_to_end=model,
        part=part,
        captured=program,
        cut=program,
        unrepeated=program,
        reduced=program,
        fresh=None,
        estimate=None,
        confirmed=True,
        complete=True,
        tests=2,
        elapsed_s=1.0,
        script="",
    )
    assert result.contradictory == contradictory
    assert ("contradict each other" in reduced_text(result)) == contradictory

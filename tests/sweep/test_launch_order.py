"""The order of launches: close calls first, a random share, and what fits into the time."""

from __future__ import annotations

import math

import pytest

from torchyard.core.study import Budget
from torchyard.sweep.cell_gate import CellReport, OpenComparison
from torchyard.sweep.launch_order import RANDOM_SHARE, LaunchOrder, launches_to_verdict

BUDGET = Budget(time_s=60.0)


def report(log_speedup: float, launch_sd: float | None, launches: int) -> CellReport:
    one = OpenComparison(log_speedup=log_speedup, launch_sd=launch_sd)
    return CellReport(launches=launches, undecided=(one,))


def order_of(*cells: str, launch_s: float = 5.0, seed: int = 3) -> LaunchOrder:
    order = LaunchOrder(dict.fromkeys(cells, BUDGET), seed=seed)
    for cell in cells:
        order.record(cell, 2 * launch_s)
        order.record(cell, launch_s)
    return order


def chosen(order: LaunchOrder, reports: dict[str, CellReport], *, times: int = 200) -> list[str]:
    names = [order.next_waiting(reports) for _ in range(times)]
    return [name for name in names if name is not None]


def test_each_pass_begins_with_the_cell_closest_to_a_verdict_or_sometimes_a_random_one() -> None:
    reports = {
        "quiet": report(0.05, 0.004, 4),
        "noisy": report(0.05, 0.08, 4),
        "noisier": report(0.002, 0.2, 4),
    }
    names = chosen(order_of(*reports), reports, times=6000)
    passes = [names[at : at + 3] for at in range(0, len(names), 3)]
    assert all(set(one) == set(reports) for one in passes)
    others = sum(one[0] != "quiet" for one in passes)
    # Two of three random choices are other cells.
    assert 0.4 * RANDOM_SHARE < others / len(passes) < 1.2 * RANDOM_SHARE


def test_no_cell_has_two_launches_in_a_pass() -> None:
    """Launches that are close in time share the state of the machine."""
    cells = [f"{number:04d}" for number in range(40)]
    order = order_of(*cells)
    reports = {cell: report(0.01 * int(cell), 0.01, 3) for cell in cells}
    last: dict[str, int] = {}
    for number in range(2000):
        cell = order.next_waiting(reports)
        assert cell is not None
        if number >= len(cells):
            assert number // len(cells) == last[cell] // len(cells) + 1
        last[cell] = number


def test_a_cheap_launch_is_preferred_at_the_same_distance() -> None:
    order = LaunchOrder({"cheap": BUDGET, "dear": BUDGET})
    for cell, launch_s in (("cheap", 2.0), ("dear", 40.0)):
        order.record(cell, launch_s)
        order.record(cell, launch_s)
    reports = {"dear": report(0.05, 0.01, 4), "cheap": report(0.05, 0.01, 4)}
    firsts = chosen(order, reports)[::2]
    assert firsts.count("cheap") > 0.8 * len(firsts)


def test_a_cell_that_cannot_be_decided_is_last_but_not_forgotten() -> None:
    hopeless = OpenComparison(log_speedup=0.0, launch_sd=3.0)
    assert launches_to_verdict(hopeless, 9, BUDGET) == math.inf
    reports = {"hopeless": CellReport(launches=9, undecided=(hopeless,))}
    assert order_of("hopeless").next_waiting(reports) == "hopeless"


@pytest.mark.parametrize(
    ("log_speedup", "launches", "needed"),
    [(0.7, 1, 1), (0.7, 2, 1), (0.7, 3, 1), (0.3, 1, 2), (0.3, 2, 1)],
)
def test_launches_up_to_the_first_possible_verdict(
    log_speedup: float, launches: int, needed: int
) -> None:
    clear = OpenComparison(log_speedup=log_speedup, launch_sd=1e-5 if launches > 1 else None)
    budget = Budget(precision_goal=0.2)
    assert launches_to_verdict(clear, launches, budget) == needed


def test_the_longest_first_launches_come_first_if_asked() -> None:
    expected_s = {f"{number}": float(number) for number in range(1, 30)}
    budgets = dict.fromkeys([*expected_s, "unknown"], BUDGET)
    order = LaunchOrder(budgets, first_launch_s=expected_s, longest_first=True)
    left, chosen = set(budgets), []
    while (cell := order.next_fresh(left)) is not None:
        chosen.append(cell)
        left.remove(cell)
    assert chosen == ["unknown", *sorted(expected_s, key=lambda one: -expected_s[one])]
    shuffled = LaunchOrder(budgets, first_launch_s=expected_s)
    assert shuffled.next_fresh(set(budgets)) == min(budgets, key=lambda one: shuffled._place[one])


def test_only_launches_that_fit_are_chosen() -> None:
    order = LaunchOrder(
        {"long": BUDGET, "short": BUDGET}, first_launch_s={"long": 100.0, "short": 10.0}
    )
    assert order.next_fresh({"long", "short"}, remaining_s=20.0) == "short"
    assert order.next_fresh({"long"}, remaining_s=20.0) is None
    order = order_of("one", launch_s=30.0)
    assert order.next_waiting({"one": report(0.1, 0.01, 2)}, remaining_s=10.0) is None
    assert order.next_waiting({"one": report(0.1, 0.01, 2)}, remaining_s=40.0) == "one"


def test_durations_are_learned_from_other_cells() -> None:
    order = LaunchOrder({"a": BUDGET, "b": BUDGET}, first_launch_s={"a": 10.0, "b": 20.0})
    order.record("a", 30.0)  # three times as long as expected
    assert order.first_launch_s("b") == pytest.approx(60.0)
    order.record("a", 15.0)
    order.record("b", 60.0)
    assert order.later_launch_s("a") == 15.0
    assert order.later_launch_s("b") == pytest.approx(30.0)
    order.forget("b")
    assert order.later_launch_s("b") == 0.0


@pytest.mark.parametrize("message", [b"", b"{}", b"null", b"[]", b'{"launches": "x"}', b"\xff\xfe"])
def test_an_invalid_report_counts_as_none(message: bytes) -> None:
    assert CellReport.decode(message) == CellReport()


def test_a_report_comes_back_as_it_was_sent() -> None:
    for one in (report(-0.25, None, 1), report(0.5, 0.01, 7), CellReport()):
        assert CellReport.decode(one.encode()) == one

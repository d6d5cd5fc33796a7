"""The calculations of the values benchmark: intervals, tables, and false findings."""

from __future__ import annotations

import math
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torchyard.values.model import Certainty, Place, Proof, ValueFinding, ValueProfile

pytestmark = pytest.mark.torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def overhead() -> Any:
    return runpy.run_path(str(BENCHMARKS / "values_overhead.py"))


@pytest.fixture(scope="module")
def benchmark() -> Any:
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return runpy.run_path(str(BENCHMARKS / "values.py"))
    finally:
        sys.path[:] = before


def test_the_interval_lies_between_two_of_the_values(overhead: Any) -> None:
    ratio = overhead["ratio_of"]([1.9, 1.1, 1.2, 1.8, 1.3, 1.7, 1.4, 1.6, 1.5])
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (1.5, 1.2, 1.8, 9)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_with_few_rounds_the_interval_is_all_of_them(overhead: Any, count: int) -> None:
    values = [1.0 + 0.1 * number for number in range(count)]
    ratio = overhead["ratio_of"](values)
    assert (ratio.low, ratio.high) == (values[0], values[-1])


@pytest.mark.parametrize("count", [6, 9, 15, 30])
def test_the_interval_holds_the_median_often_enough(overhead: Any, count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(2000):
        ratio = overhead["ratio_of"]([chance.expovariate(1.0) for _ in range(count)])
        held += ratio.low <= math.log(2) <= ratio.high
    assert held / 2000 >= 0.935


def test_ratios_are_taken_within_rounds(overhead: Any) -> None:
    # The second round was ten times as slow for all: the ratio is the same.
    rounds = [
        {
            "native": {"native": [(0.1 * slow, 0.2 * slow)]},
            "fast": {"close": [(0.12 * slow, 0.3 * slow)]},
            "deep": {"close": [(0.2 * slow, 0.4 * slow)], "surveyed": [(0.11 * slow, 0.2 * slow)]},
        }
        for slow in (1, 10)
    ]
    found = overhead["_overhead"]("m", "fast", "close", rounds)
    assert found.cpu.median == pytest.approx(1.2)
    assert found.wall.median == pytest.approx(1.5)
    assert overhead["_phases"](rounds) == ["close", "surveyed"]
    row = overhead["overhead_table"]([found]).splitlines()[-1]
    assert row.startswith("| m | 550 ms | fast | close | 1.20x [1.20, 1.20] | 1.50x")


def finding(*, path: tuple[str, ...] = (), certainty: Certainty = Certainty.LIKELY) -> ValueFinding:
    return ValueFinding(
        pattern="dead initialisation",
        operator="aten::zero_",
        path=path,
        place=Place(file="m.py", line=3),
        proof=Proof(certainty=certainty),
    )


def test_in_a_clean_program_all_is_false_but_known_waste_of_torch(benchmark: Any) -> None:
    result = benchmark["CorpusResult"](depth="deep")
    clean = benchmark["CLEAN"][0]
    found = (
        finding(path=("aten::mse_loss_backward",), certainty=Certainty.PROVEN),
        finding(),
        finding(path=("aten::relu",), certainty=Certainty.PROVEN),
    )
    profile = ValueProfile(format=1, state="finished", torch="2", findings=found)
    benchmark["_count_clean"](result, clean, profile)
    assert result.false["dead initialisation"] == 2
    assert result.false_proven["dead initialisation"] == 1
    assert len(result.inside) == 1
    assert not result.good
    table = benchmark["corpus_table"](result)
    assert "| dead initialisation | 0 | 0 | 0 | 0 | 2 | 1 |" in table


def test_what_is_planted_is_missed_found_or_proven(benchmark: Any) -> None:
    program = next(one for one in benchmark["PLANTED"] if one.name == "scaled_in_place_by_one")
    result = benchmark["CorpusResult"](depth="fast")
    empty = ValueProfile(format=1, state="finished", torch="2")
    benchmark["_count_planted"](result, program, empty, deep=False)
    assert len(result.missed) == len(program.wastes)
    assert not result.good
    profile = benchmark["_profile"](program, deep=False)
    again = benchmark["CorpusResult"](depth="fast")
    benchmark["_count_planted"](again, program, profile, deep=False)
    assert again.good
    assert sum(again.found.values()) == len(program.wastes)

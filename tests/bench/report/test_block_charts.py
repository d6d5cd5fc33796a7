"""Charts of blocks: what is drawn, what is thinned, and the caption."""

from __future__ import annotations

import json
import math
import random

import pytest

from tests.sample_records import made_block
from torchyard.bench.report.block_charts import (
    BASES,
    BLOCKS_DRAWN,
    PAIRS_DRAWN,
    SAMPLES_DRAWN,
    ChartData,
    disturbance_chart,
    in_order,
    launch_chart,
    sample_chart,
)
from torchyard.core.block import Block


def block(
    launch: int,
    round_: int,
    position: int,
    samples: tuple[float, ...] = (1e6, 1.1e6),
    dirty: tuple[str, ...] = (),
    variant: str = "",
) -> Block:
    return made_block(
        variant or ("eager", "inductor")[position],
        launch=launch,
        round=round_,
        position=position,
        samples_ns=samples,
        dirty=dirty,
    )


def many(launches: int, rounds: int, samples: int, *, dirty: float = 0.0) -> list[Block]:
    rng = random.Random(3)
    return [
        block(
            launch,
            round_,
            position,
            tuple(rng.uniform(1e6, 1.2e6) for _ in range(samples)),
            ("waited",) if rng.random() < dirty else (),
        )
        for launch in range(launches)
        for round_ in range(rounds)
        for position in (0, 1)
    ]


def table(chart: ChartData) -> list[dict[str, object]]:
    data = chart.own["data"]
    return [dict(zip(data["names"], row, strict=True)) for row in data["rows"]]


def parameters(chart: ChartData) -> dict[str, object]:
    return {one["name"]: one["value"] for one in chart.own["params"]}


def test_blocks_in_the_order_they_were_taken() -> None:
    mixed = [block(1, 0, 0), block(0, 1, 1), block(0, 1, 0), block(0, 0, 0, variant="other")]
    ordered = in_order(mixed, "eager", "inductor")
    assert [(one.launch, one.round, one.position) for one in ordered] == [
        (0, 1, 0),
        (0, 1, 1),
        (1, 0, 0),
    ]


def test_few_samples_are_all_drawn() -> None:
    blocks = [block(0, 0, 0, (2e6, 2.5e6)), block(0, 0, 1, (1e6,), ("paged", "waited"))]
    chart = sample_chart(blocks, "eager")
    assert table(chart) == [
        {"launch": 1, "side": "b", "dirty": 0, "time": [2, 2.5]},
        {"launch": 1, "side": "c", "dirty": 1, "time": [1]},
    ]
    assert parameters(chart) == {"reasons": ["", "paged, waited"], "unit": "ms"}
    assert "drawn" not in chart.title


def test_many_samples_are_thinned_and_the_caption_says_so() -> None:
    blocks = many(6, 5, 100)
    chart = sample_chart(blocks, "eager")
    times = [time for row in table(chart) for time in row["time"]]  # type: ignore[attr-defined]
    assert len(times) <= SAMPLES_DRAWN
    assert f"{len(times):,} of 6,000 drawn" in chart.title
    assert "blocks" not in chart.title.partition("Hollow")[0].partition("in each block")[2]
    # The slowest sample of each block is among them, in its place.
    for one, row in zip(blocks, table(chart), strict=True):
        slowest = float(f"{max(one.samples_ns) / 1e6:.4g}")
        assert slowest in row["time"]  # type: ignore[operator]
        rest = iter([float(f"{sample / 1e6:.4g}") for sample in one.samples_ns])
        assert all(time in rest for time in row["time"])  # type: ignore[attr-defined]


def test_many_blocks_are_thinned_by_rounds() -> None:
    chart = sample_chart(many(20, 20, 5), "eager")
    rows = table(chart)
    assert len(rows) <= BLOCKS_DRAWN
    assert [row["side"] for row in rows] == ["b", "c"] * (len(rows) // 2)
    assert {row["launch"] for row in rows} == set(range(1, 21))
    assert f"in {len(rows)} of 800 blocks" in chart.title


def test_a_few_very_slow_samples_do_not_flatten_the_rest() -> None:
    blocks = [
        block(0, n, p, (1e6,) * 19 + (9e6 if n == 3 else 1e6,)) for n in range(8) for p in (0, 1)
    ]
    chart = sample_chart(blocks, "eager")
    assert "2 slower than 1.5 ms are drawn at the top edge" in chart.title
    assert max(max(row["time"]) for row in table(chart)) == 1.5  # type: ignore[call-overload]


def test_slow_samples_that_are_many_are_shown() -> None:
    blocks = [block(0, n, p, (1e6,) * 15 + (9e6,) * 5) for n in range(8) for p in (0, 1)]
    assert "top edge" not in sample_chart(blocks, "eager").title


@pytest.mark.parametrize(("time_ns", "unit"), [(5.0, "ns"), (5e4, "µs"), (5e7, "ms"), (5e9, "s")])
def test_units(time_ns: float, unit: str) -> None:
    assert parameters(sample_chart([block(0, 0, 0, (time_ns,))], "eager"))["unit"] == unit


def test_launches_with_their_pairs() -> None:
    logs = [(math.log(1.1), math.log(1.2), math.log(1.3)), (), (math.log(1.25),)]
    chart = launch_chart(logs, low=1.1, high=1.3, speedup=1.2)
    assert table(chart) == [
        {"launch": 1, "middle": 1.2, "ratio": [1.1, 1.2, 1.3]},
        {"launch": 3, "middle": 1.25, "ratio": [1.25]},
    ]
    shown_parameters = parameters(chart)
    assert (shown_parameters["low"], shown_parameters["high"], shown_parameters["speedup"]) == (
        1.1,
        1.3,
        1.2,
    )
    assert shown_parameters["bottom"] < 1  # type: ignore[operator]
    assert shown_parameters["top"] > 1.3  # type: ignore[operator]


def test_a_speed_that_does_not_count_has_no_interval() -> None:
    shown_parameters = parameters(launch_chart([(0.5, 0.6)], low=None, high=None, speedup=None))
    assert (
        shown_parameters["low"]
        == shown_parameters["high"]
        == shown_parameters["speedup"]
        == shown_parameters["bottom"]
    )


def test_no_difference_is_on_the_chart_only_when_it_is_near() -> None:
    far = parameters(launch_chart([(1.0, 1.01)], low=2.7, high=2.75, speedup=2.72))
    assert far["bottom"] > 2  # type: ignore[operator]


def test_many_pairs_are_thinned() -> None:
    chart = launch_chart([[0.1] * 100 for _ in range(10)], low=1, high=2, speedup=1.1)
    assert sum(len(row[2]) for row in chart.own["data"]["rows"]) == PAIRS_DRAWN
    assert "240 of 1,000 pairs drawn" in chart.title


def test_disturbances_by_reason() -> None:
    blocks = [
        block(0, 0, 0),
        block(0, 0, 1, dirty=("waited", "paged")),
        block(1, 0, 0, dirty=("waited",)),
        block(1, 0, 1),
    ]
    chart = disturbance_chart(blocks, "eager")
    assert table(chart) == [
        {"order": 1, "launch": 1, "side": "b", "why": [0]},
        {"order": 2, "launch": 1, "side": "c", "why": [1, 2]},
        {"order": 3, "launch": 2, "side": "b", "why": [1]},
        {"order": 4, "launch": 2, "side": "c", "why": [0]},
    ]
    assert parameters(chart)["reasons"] == ["", "waited", "paged"]
    assert chart.own["height"] > disturbance_chart(blocks[2:], "eager").own["height"]


def test_many_disturbances_are_thinned() -> None:
    chart = disturbance_chart(many(4, 100, 1, dirty=1.0), "eager")
    assert f"{BLOCKS_DRAWN} of 800 drawn" in chart.title
    assert len(table(chart)) <= BLOCKS_DRAWN + 8


def test_shapes_hold_no_data_and_every_chart_has_one() -> None:
    for name, base in BASES.items():
        assert "data" not in base, name
    blocks = many(2, 3, 4, dirty=0.5)
    charts = (
        sample_chart(blocks, "eager"),
        launch_chart([(0.1,)], low=1, high=2, speedup=1.1),
        disturbance_chart(blocks, "eager"),
    )
    for chart in charts:
        names = {one["name"] for one in BASES[chart.base]["params"]}
        assert set(parameters(chart)) == names
        json.dumps(chart.own, allow_nan=False)


def test_times_that_are_no_numbers() -> None:
    chart = sample_chart([block(0, 0, 0, (math.inf, 1e6)), block(0, 0, 1, (1e6,))], "eager")
    json.dumps(chart.own, allow_nan=False)

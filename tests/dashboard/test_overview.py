"""The overview of the dashboard: regressions first, means of suites, names of unnamed runs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dashboard.sample_dashboard import (
    GPT,
    MATMUL,
    Names,
    comparison,
    open_client,
    write_run,
)
from tests.presentation.page_outline import page_outline
from torchyard.bench.report.suite_summary import suite_means
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Workload
from torchyard.dashboard.feeds import LiveStore
from torchyard.dashboard.overview import Overview, mean_speedup, read_overview, suites_spec
from torchyard.results.model import RunFilter

SOFTMAX = Workload(suite="kernels", name="softmax")
NOISY = ("noisy machine: 9 of 9 pairs were disturbed",)


def write_day(
    home: Path, day: int, rows: Sequence[Comparison], *, study: str = "nightly", revision: str = ""
) -> None:
    write_run(
        home / f"202501{day:02d}T000000.000Z-{day:04x}",
        rows=rows,
        names=Names(study=study, revision=revision or f"{day:040x}"),
        started=f"2025-01-{day:02d}T00:00:00.000Z",
    )


def overview_of(home: Path) -> Overview:
    live_store = LiveStore(home)
    try:
        return read_overview(live_store)
    finally:
        live_store.close()


def test_a_regression_is_one_even_if_the_candidate_is_still_faster(tmp_path: Path) -> None:
    write_day(tmp_path, 1, [comparison(MATMUL, Verdict.FASTER, 1.50)])
    write_day(tmp_path, 2, [comparison(MATMUL, Verdict.FASTER, 1.32)])
    (row,) = overview_of(tmp_path).regressions
    assert row["size"] == "-12.0%"
    assert row["levels"] == ["1.500x", "1.320x"]
    assert not row["confirmed"]
    assert "not confirmed" in row["evidence"]
    with open_client(tmp_path) as seen:
        home = page_outline(seen.page("/"))
        workloads = page_outline(seen.page("/workloads"))
        (record,) = seen.client.get("/api/runs").json()["regressions"]
        assert "regressions" not in seen.client.get("/api/runs?study=x").json()
    assert record["series"]["workload"] == MATMUL.label
    assert record["levels"] == ["1.500x", "1.320x"]
    assert home.index("Regressions") < home.index("All runs")
    assert "▽ -12.0%" in home
    assert "▽ -12.0%" in workloads


def test_a_step_that_the_history_confirms(tmp_path: Path) -> None:
    noise = [1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.996, 1.003]
    for day, factor in enumerate([*noise, *noise], start=1):
        speedup = (1.5 if day <= len(noise) else 1.32) * factor
        write_day(tmp_path, day, [comparison(MATMUL, Verdict.FASTER, speedup)])
    (row,) = overview_of(tmp_path).regressions
    assert row["confirmed"]
    assert "step on 2025-01-09" in row["evidence"]
    before, after = (float(text.removesuffix("x")) for text in row["levels"])
    assert after / before == pytest.approx(row["ratio"], rel=1e-3)
    assert row["ratio"] == pytest.approx(0.88, rel=0.01)


@pytest.mark.parametrize(
    "newest",
    [
        comparison(MATMUL, Verdict.FASTER, 1.499),
        replace(comparison(MATMUL, Verdict.FASTER, 1.1), untrusted=NOISY),
        comparison(MATMUL, Verdict.WRONG, 1.1),
        comparison(MATMUL, Verdict.FASTER, 1.8),
    ],
    ids=["same", "untrusted", "wrong", "better"],
)
def test_what_is_no_regression(tmp_path: Path, newest: Comparison) -> None:
    write_day(tmp_path, 1, [comparison(MATMUL, Verdict.FASTER, 1.5)])
    write_day(tmp_path, 2, [newest])
    assert overview_of(tmp_path).regressions == ()


def test_untrusted_runs_do_not_show_that_nothing_regressed(tmp_path: Path) -> None:
    for day in (1, 2):
        untrusted = replace(comparison(MATMUL, Verdict.FASTER, 1.5), untrusted=NOISY)
        write_day(tmp_path, day, [untrusted, comparison(GPT, Verdict.FASTER, 1.2)][: 3 - day])
    assert overview_of(tmp_path).assessed == 0
    with open_client(tmp_path) as seen:
        page = page_outline(seen.page("/"))
    assert "none of the 2 series has two trusted runs" in page
    assert "No speedup fell" not in page


def test_the_mean_of_a_suite_is_over_the_same_workloads_in_every_run(tmp_path: Path) -> None:
    both = [comparison(MATMUL, Verdict.FASTER, 2.0), comparison(SOFTMAX, Verdict.FASTER, 1.125)]
    write_day(tmp_path, 1, both)
    write_day(tmp_path, 2, both[:1])  # not comparable with the newest run
    slower = comparison(SOFTMAX, Verdict.FASTER, 0.5)
    write_day(tmp_path, 3, [both[0], slower, comparison(GPT, Verdict.FASTER, 9.0)])
    (line,) = overview_of(tmp_path).suites
    assert (line.suite, line.workloads) == ("kernels", 2)
    assert [mean for _, mean in line.points] == pytest.approx([1.5, 1.0])
    assert line.change == "-33.3%"


@pytest.mark.parametrize(("revision", "title"), [("", "revision"), ("same", "date")])
def test_the_axis_has_revisions_or_dates(tmp_path: Path, revision: str, title: str) -> None:
    for day in (1, 2):
        row = comparison(MATMUL, Verdict.FASTER, 1.5)
        write_day(tmp_path, day, [row], revision=revision)
    spec = suites_spec(overview_of(tmp_path).suites)
    assert spec["encoding"]["x"]["title"] == f"{title}, oldest first"
    names = spec["params"][0]["value"]
    assert names["1"] == ("2025-01-02" if revision else f"{2:040x}"[:10])


def test_an_unnamed_run_is_named_by_workload_and_speedup(tmp_path: Path) -> None:
    untrusted = replace(comparison(SOFTMAX, Verdict.FASTER, 1.9), untrusted=NOISY)
    several = [comparison(MATMUL, Verdict.FASTER, 2.0), comparison(GPT, Verdict.FASTER, 1.125)]
    write_day(tmp_path, 1, [comparison(GPT, Verdict.FASTER, 1.31)], study="bench")
    write_day(tmp_path, 2, [untrusted], study="bench")
    write_day(tmp_path, 3, several, study="bench")
    with open_client(tmp_path) as seen:
        page = page_outline(seen.page("/"))
    assert re.search(r"models/gpt inference: inductor vs eager \| 1\.310x \|", page)
    assert re.search(r"softmax inference: inductor vs eager \| \(1\.900x\) \| ! ?1 untrusted", page)
    assert re.search(r"2 workloads: inductor vs eager \| 1\.500x mean of 2 \|", page)


def test_the_mean_of_a_run_is_that_of_its_report(tmp_path: Path) -> None:
    rows = [
        comparison(MATMUL, Verdict.FASTER, 2.0),
        comparison(SOFTMAX, Verdict.WRONG, 7.0),
        replace(comparison(GPT, Verdict.FASTER, 5.0), untrusted=NOISY),
        comparison(replace(GPT, mode="training"), Verdict.SLOWER, 0.8),
    ]
    write_day(tmp_path, 1, rows)
    live_store = LiveStore(tmp_path)
    mean = mean_speedup(live_store.comparisons(RunFilter()))
    live_store.close()
    assert mean is not None
    assert mean[0] == pytest.approx(suite_means(rows)[0].speedup)
    assert mean[0] == pytest.approx(math.sqrt(1.6))
    assert mean[1] == 2


def test_untrusted_runs_are_marked_where_two_are_compared(tmp_path: Path) -> None:
    untrusted = replace(comparison(MATMUL, Verdict.FASTER, 1.9), untrusted=NOISY)
    write_day(tmp_path, 1, [untrusted])
    write_day(tmp_path, 2, [comparison(MATMUL, Verdict.FASTER, 1.9)])
    with open_client(tmp_path) as seen:
        choice = page_outline(seen.page("/compare"))
    assert choice.count("1 untrusted") == 2  # one option in each of the two lists

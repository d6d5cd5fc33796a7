"""The ratio of the two times of a row is its speedup, in every format and view."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from tests.bench.sample_run import COMPARISONS, STUDY, write_run
from tests.sample_records import made_block
from torchyard.bench.outcome import Spent, make_comparison
from torchyard.bench.preparation import PreparationState
from torchyard.bench.report.formats import FORMATS
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.units import format_duration
from torchyard.results.compare.compare_sides import same_run_rows
from torchyard.results.compare.sides import Rules
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.run_reader import Run, read_run
from torchyard.stats.stopping import InterimAnalysis
from torchyard.sweep.rows import RunComparison, row_of
from torchyard.tune.perf_test.measurement import PerfTest
from torchyard.tune.perf_test.report import perf_text

UNITS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}
TIME = r"(\d[\d.]*) (s|ms|µs|ns)"
ROUNDED = 0.012
"""Two times of three digits and a speedup of three decimals, each rounded."""


def nanoseconds(number: str, unit: str) -> float:
    return float(number) * UNITS[unit]


def measured(place: int) -> Comparison:
    """A comparison from blocks of a machine that changes its speed, where plain medians mislead."""
    rng = np.random.default_rng((51, place))
    sample = COMPARISONS[place]
    blocks = []
    for launch in range(4):
        level = rng.choice([5e6, 11e6, 24e6])
        for number in range(7):
            shared = level * rng.choice([1.0, 2.0])
            for name, speedup in ((sample.baseline, 1.0), (sample.candidate, (1.12, 0.9)[place])):
                samples = shared / speedup * np.exp(rng.normal(0.0, 0.05, 5))
                blocks.append(
                    made_block(
                        name,
                        launch=launch,
                        round=number,
                        samples_ns=tuple(samples.tolist()),
                        wall_ns=int(samples.sum()),
                    )
                )
    variants = {variant.name: variant for variant in STUDY.variants}
    return make_comparison(
        sample.workload,
        variants[sample.baseline],
        variants[sample.candidate],
        blocks=blocks,
        analyses=[InterimAnalysis(launches=4, fraction=1.0)],
        budget=STUDY.budget,
        prepared=PreparationState(),
        spent=Spent(),
        failure=None,
    )


def contradicting(row: Comparison) -> Comparison:
    """The same row with times as earlier releases stored them."""
    return replace(
        row,
        baseline_metrics=replace(row.baseline_metrics, time_ns=40.4e6),
        candidate_metrics=replace(row.candidate_metrics, time_ns=33.7e6),
    )


@pytest.fixture(scope="module", params=["new", "old"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    rows = tuple(measured(place) for place in (0, 1))
    if request.param == "old":
        rows = tuple(contradicting(row) for row in rows)
    return write_run(tmp_path_factory.mktemp("home") / "run", comparisons=rows)


def pairs_in(text: str) -> Iterator[tuple[float, float, float]]:
    """Both times and the speedup of every row of a table in words."""
    pattern = rf"{TIME}[^\d]*?(?:\D*?){TIME}\D*?(\d\.\d{{3}})x"
    for found in re.finditer(pattern, text):
        yield (
            nanoseconds(found[1], found[2]),
            nanoseconds(found[3], found[4]),
            float(found[5]),
        )


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_tables(run: Run, form: str) -> None:
    text = FORMATS[form](run)
    rows = list(pairs_in(text))
    assert len(rows) == 2
    for before, after, speedup in rows:
        assert before / after == pytest.approx(speedup, rel=ROUNDED)


def test_csv(run: Run) -> None:
    rows = list(csv.DictReader(StringIO(FORMATS["csv"](run))))
    assert len(rows) == 2
    for row in rows:
        ratio = float(row["baseline_time_ns"]) / float(row["candidate_time_ns"])
        assert ratio == pytest.approx(float(row["speedup"]), rel=1e-9)


def test_json(run: Run) -> None:
    rows = json.loads(FORMATS["json"](run))["comparisons"]
    assert len(rows) == 2
    for row in rows:
        times = [row[f"{side}_metrics"]["time_ns"] for side in ("baseline", "candidate")]
        assert times[0] / times[1] == pytest.approx(row["estimate"]["speedup"], rel=1e-9)


def test_dynamo_csv(run: Run) -> None:
    rows = list(csv.DictReader(StringIO(FORMATS["dynamo-csv"](run))))
    for row, comparison in zip(rows, run.comparisons, strict=True):
        before = (comparison.baseline_metrics.time_ns or 0.0) / 1e6
        assert before / float(row["abs_latency"]) == pytest.approx(float(row["speedup"]), rel=1e-9)


def test_html(run: Run) -> None:
    page = FORMATS["html"](run)
    cells = re.findall(
        r'data-key="(speedup|baseline|time)"[^>]*data-value="([\d.e+]+)">([^<]*)', page
    )
    assert len(cells) == 6
    values = [{key: float(value) for key, value, _ in cells[at : at + 3]} for at in (0, 3)]
    for row in values:
        assert row["baseline"] / row["time"] == pytest.approx(row["speedup"], rel=1e-9)
    for key, value, text in cells:
        if key != "speedup":
            assert text == format_duration(float(value))


def test_dashboard_history_and_exports_ask_the_index(run: Run) -> None:
    with Store.open(run.folder.parent) as store:
        store.refresh()
        entries = store.comparisons(RunFilter())
    assert len(entries) == 2
    for entry in entries:
        assert entry.baseline_ns is not None
        assert entry.candidate_ns is not None
        assert entry.baseline_ns / entry.candidate_ns == pytest.approx(entry.speedup, rel=1e-9)


def test_comparing_variants_of_one_run(run: Run) -> None:
    rows, _ = same_run_rows(run, ("eager", "inductor"), Rules())
    flipped, _ = same_run_rows(run, ("inductor", "eager"), Rules())
    assert len(rows) == len(flipped) == 2
    for row in (*rows, *flipped):
        assert row.one.time_ns is not None
        assert row.other.time_ns is not None
        assert row.one.time_ns / row.other.time_ns == pytest.approx(row.ratio, rel=1e-9)


def test_sweeps_and_performance_tests(run: Run) -> None:
    for row in run.comparisons:
        swept = row_of(
            RunComparison(comparison=row, run=run), status=None, uncorrected=Verdict.UNDECIDED
        )
        assert swept.baseline_ns is not None
        assert swept.candidate_ns is not None
        assert swept.baseline_ns / swept.candidate_ns == pytest.approx(swept.speedup, rel=1e-9)
    text = perf_text(PerfTest(comparisons=run.comparisons, tables=(), peak=None))
    times = [nanoseconds(*found) for found in re.findall(rf"  {TIME}", text)]
    speedups = [float(found) for found in re.findall(r" is (\d\.\d+)x", text)]
    assert len(times) == 2 * len(speedups) == 4
    for place, speedup in enumerate(speedups):
        assert times[2 * place] / times[2 * place + 1] == pytest.approx(speedup, rel=ROUNDED)


def test_break_even_uses_the_same_times(run: Run) -> None:
    row = replace(
        run.comparisons[0],
        verdict=Verdict.FASTER,
        candidate_metrics=replace(run.comparisons[0].candidate_metrics, compile_cold_s=3.0),
    )
    before, after = row.baseline_metrics.time_ns, row.candidate_metrics.time_ns
    assert before is not None
    assert after is not None
    assert row.break_even_iterations == pytest.approx(3e9 / (before - after), rel=1e-6)


def test_an_old_run_shows_the_stored_times(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", comparisons=(contradicting(measured(0)),)).folder
    text = FORMATS["terminal"](read_run(folder))
    assert "medians of all blocks: 40.4 ms and 33.7 ms" in " ".join(text.split())

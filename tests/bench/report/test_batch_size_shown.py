"""The batch size chosen by a suite is shown in rows, exports and pages."""

from __future__ import annotations

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, write_run
from torchyard.bench.report.formats import to_csv, to_dynamo_csv
from torchyard.bench.report.page import to_html
from torchyard.bench.report.text import to_markdown, to_text
from torchyard.core.comparison import Comparison
from torchyard.presentation.wording import title_of, workload_text
from torchyard.results.run_reader import Run

FIRST = COMPARISONS[1]


def ran_with(batch_size: int | None, asked: int | None = None) -> Comparison:
    return replace(
        FIRST,
        workload=replace(FIRST.workload, batch_size=asked),
        baseline_metrics=replace(FIRST.baseline_metrics, batch_size=batch_size),
        candidate_metrics=replace(FIRST.candidate_metrics, batch_size=batch_size),
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", comparisons=(ran_with(48),))


def test_the_row_says_the_batch_size_that_was_run() -> None:
    assert workload_text(ran_with(48)) == "kernels/attention inference b48"
    assert title_of(ran_with(48)) == "kernels/attention inference b48 · inductor"
    assert workload_text(ran_with(48, asked=48)) == "kernels/attention inference b48"
    assert workload_text(ran_with(None)) == "kernels/attention inference"


def test_one_failed_variant_does_not_hide_it() -> None:
    half = ran_with(48)
    half = replace(half, candidate_metrics=replace(half.candidate_metrics, batch_size=None))
    assert workload_text(half) == "kernels/attention inference b48"


def test_every_format_shows_it(run: Run) -> None:
    assert " b48 " in to_text(run) or "\nb48" in to_text(run)
    assert "kernels/attention inference b48" in to_markdown(run)
    for text in (to_csv(run), to_dynamo_csv(run)):
        (row,) = csv.DictReader(StringIO(text))
        assert row["batch_size"] == "48"
    assert "batch size" in to_html(run)

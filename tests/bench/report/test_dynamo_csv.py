"""The columns of PyTorch's benchmark harness, as its own scripts read them."""

from __future__ import annotations

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, write_run
from torchyard.bench.report.formats import COLUMNS, to_dynamo_csv
from torchyard.core.comparison import VariantMetrics

HARNESS = (
    "dev,name,batch_size,speedup,abs_latency,compilation_latency,compression_ratio,"
    "eager_peak_mem,dynamo_peak_mem"
)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_one_candidate_has_the_columns_of_the_harness(tmp_path: Path) -> None:
    text = to_dynamo_csv(write_run(tmp_path / "run", comparisons=COMPARISONS[:6]))
    head = text.splitlines()[0]
    assert head == f"{HARNESS},unique_graphs,graph_breaks,unique_graph_breaks"
    rows = rows_of(text)
    assert [row["dev"] for row in rows] == ["cpu"] * 5 + ["cuda"]
    first = rows[0]
    assert first["name"] == "kernels/matmul inference size=1000"
    assert float(first["speedup"]) == 1.352
    assert float(first["abs_latency"]) == pytest.approx(9.13)
    assert float(first["compilation_latency"]) == 21.4
    assert float(first["compression_ratio"]) == 1.0
    assert float(first["eager_peak_mem"]) == pytest.approx(412 * 2**20 / 1e9)
    assert (first["unique_graphs"], first["graph_breaks"]) == ("2", "3")
    assert first["unique_graph_breaks"] == "2"
    assert rows[3]["batch_size"] == "8"
    assert rows[3]["name"] == "models/resnet inference"


def test_several_candidates_are_distinguished_by_the_tag(tmp_path: Path) -> None:
    text = to_dynamo_csv(write_run(tmp_path / "run"))
    assert tuple(text.splitlines()[0].split(",")) == COLUMNS
    assert [row["tag"] for row in rows_of(text)] == ["inductor"] * 6 + ["tcmalloc"]


def test_what_failed_or_is_wrong_has_no_speed(tmp_path: Path) -> None:
    rows = rows_of(to_dynamo_csv(write_run(tmp_path / "run")))
    for place in (4, 5):
        assert (rows[place]["speedup"], rows[place]["abs_latency"]) == ("0.0", "0.0")
    assert all(float(row["speedup"]) > 0 for row in rows[:4])


def test_memory_that_is_not_known(tmp_path: Path) -> None:
    odd = (
        replace(COMPARISONS[0], baseline_metrics=VariantMetrics()),
        replace(COMPARISONS[1], candidate_metrics=VariantMetrics(peak_memory_bytes=0)),
    )
    rows = rows_of(to_dynamo_csv(write_run(tmp_path / "run", comparisons=odd)))
    assert [row["compression_ratio"] for row in rows] == ["", ""]
    assert rows[0]["eager_peak_mem"] == ""
    assert rows[1]["abs_latency"] == "0.0"


def test_no_formula(tmp_path: Path) -> None:
    odd = replace(COMPARISONS[0], workload=replace(COMPARISONS[0].workload, suite="=1+1"))
    (row,) = rows_of(to_dynamo_csv(write_run(tmp_path / "run", comparisons=(odd,))))
    assert row["name"].startswith("'=")


def test_an_empty_run_has_its_headings(tmp_path: Path) -> None:
    text = to_dynamo_csv(write_run(tmp_path / "run", comparisons=()))
    assert text.startswith(HARNESS)
    assert text.count("\n") == 1

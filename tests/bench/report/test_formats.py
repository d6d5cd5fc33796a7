from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, STUDY, write_run
from torchyard.bench.report.formats import COLUMNS, SCHEMA_VERSION, to_csv, to_dynamo_csv, to_json
from torchyard.bench.report.text import to_markdown
from torchyard.core.comparison import Comparison, VariantMetrics
from torchyard.core.records import decode
from torchyard.core.study import Study, Workload
from torchyard.results.run_reader import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_json_holds_everything_and_its_version(run: Run) -> None:
    document = json.loads(to_json(run))
    assert document["schema"] == "torchyard.run-report"
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["run"]["state"] == "finished"
    assert decode(Study, document["study"], where="study") == STUDY
    comparisons = [
        decode(Comparison, item, where="", strict=False) for item in document["comparisons"]
    ]
    assert tuple(comparisons) == COMPARISONS
    assert document["comparisons"][0]["label"] == "kernels/matmul inference size=1000"
    assert document["summary"]["verdicts"]["undecided"] == 2
    assert document["summary"]["geometric_means"][0]["comparisons"] == 4
    assert [item["label"] for item in document["summary"]["not_in_mean"]] == [
        "models/gpt training +step",
        "models/lstm inference cuda",
    ]


def test_json_says_what_each_suite_says(run: Run) -> None:
    summary = json.loads(to_json(run))["summary"]
    # One is wrong, one failed, one is random and one was not comparable.
    assert (summary["passed"], summary["comparisons"]) == (3, 7)
    models = summary["suites"][1]
    assert (models["suite"], models["passed"], models["comparisons"]) == ("models", 1, 3)
    assert models["verdicts"] == {"undecided": 1, "wrong": 1, "failed": 1}
    assert models["geometric_mean"]["speedup"] == pytest.approx(1.021)


def test_markdown_has_a_table_of_suites_where_there_are_several(tmp_path: Path, run: Run) -> None:
    assert "| models | inductor | 1.021x \\[0.991, 1.052\\] | 1 of 3 (33%) |" in to_markdown(run)
    one = write_run(tmp_path / "one", comparisons=COMPARISONS[:3])
    assert "| suite |" not in to_markdown(one)


def test_json_says_nothing_of_the_writing_process(run: Run) -> None:
    assert "owner" in run.info
    assert "owner" not in to_json(run)


def test_json_stays_valid_without_numbers(tmp_path: Path) -> None:
    assert COMPARISONS[0].estimate is not None
    odd = replace(COMPARISONS[0], estimate=replace(COMPARISONS[0].estimate, mean_speedup=math.inf))
    written = write_run(tmp_path / "run")
    text = to_json(replace(written, comparisons=(odd,)))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(text, parse_constant=refuse)
    assert document["comparisons"][0]["estimate"]["mean_speedup"] is None


def test_csv_has_one_row_per_comparison(run: Run) -> None:
    rows = rows_of(to_csv(run))
    assert len(rows) == len(COMPARISONS)
    assert float(rows[0]["speedup"]) == 1.352
    assert rows[0]["parameters"] == "size=1000"
    assert rows[0]["optimizer_step"] == "false"
    assert rows[1]["candidate_graph_breaks"] == ""
    assert rows[0]["candidate_graph_breaks"] == "3"
    assert rows[5]["speedup"] == ""
    assert rows[5]["failure"] == "out-of-memory"
    assert rows[6]["scope"] == "processes"


def test_csv_of_a_run_without_comparisons_has_its_headings(tmp_path: Path, run: Run) -> None:
    empty = to_csv(write_run(tmp_path / "empty", comparisons=()))
    assert empty == to_csv(run).splitlines()[0] + "\n"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", " =", "\u200b="])
def test_csv_never_starts_a_formula(tmp_path: Path, start: str) -> None:
    name = f'{start}HYPERLINK("http://x","y")\n,z'
    hostile = replace(
        COMPARISONS[5],
        workload=Workload(suite="file", name=name, parameters=(("=1+1", "x"),)),
        candidate="@SUM(1)",
    )
    (row,) = rows_of(to_csv(write_run(tmp_path / "run", comparisons=(hostile,))))
    cells = [cell for cell in row.values() if cell]
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r"]
    assert row["candidate"] == "'@SUM(1)"
    assert row["workload"].startswith("'")
    assert "\n" not in row["workload"]


def test_negative_numbers_stay_numbers(tmp_path: Path) -> None:
    odd = replace(COMPARISONS[0], elapsed_s=-1.5)
    (row,) = rows_of(to_csv(replace(write_run(tmp_path / "run"), comparisons=(odd,))))
    assert row["elapsed_s"] == "-1.5"


def test_markdown_keeps_text_from_outside_as_text(tmp_path: Path) -> None:
    name = "a|b `c` <img src=x> [d](http://x) @everyone # **e**\n\nf"
    hostile = replace(COMPARISONS[0], candidate=name)
    text = to_markdown(write_run(tmp_path / "run", comparisons=(hostile,)))
    row = next(line for line in text.splitlines() if "▲ faster" in line and line.startswith("|"))
    assert row.replace("\\|", "").count("|") == 10
    assert "<img" not in text
    assert "@everyone" not in text
    assert "[d](" not in text.replace("\\[", "").replace("\\]", "")


def test_markdown_sections(run: Run) -> None:
    text = to_markdown(run)
    assert (
        text.index("geometric mean")
        < text.index("**Excluded from the mean**")
        < text.index("**Notes**")
    )


HARNESS = (
    "dev,name,batch_size,speedup,abs_latency,compilation_latency,compression_ratio,"
    "eager_peak_mem,dynamo_peak_mem"
)


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

"""Comparisons and gates in every format: golden files and escaping."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.bench.report.test_golden import check
from tests.results.compare.sample_comparison import (
    HOSTILE,
    OUTCOME,
    TWO_RUNS,
    hostile_comparison,
    hostile_outcome,
)
from torchyard.core.comparison import Verdict
from torchyard.results.compare.over_time import HISTORY_FORMATS, HISTORY_SCHEMA
from torchyard.results.compare.report import (
    COMPARE_FORMATS,
    COMPARE_SCHEMA,
    COMPARE_SCHEMA_VERSION,
    compare_text,
)
from torchyard.results.compare.wording import drift_text, mean_text, notes_of_row
from torchyard.results.gate.report import (
    GATE_SCHEMA,
    gate_json,
    gate_markdown,
    gate_text,
    gate_verdict,
)
from torchyard.results.model import Series, SeriesPoint

ENDINGS = {"terminal": "txt", "markdown": "md", "csv": "csv", "json": "json", "html": "html"}
HISTORY = [
    (
        Series(workload="models/gpt inference", baseline="eager", candidate="x", machine="m-8c"),
        [
            SeriesPoint(
                run="20250101T030405.678Z-1a2b",
                started="2025-01-01T03:04:05.678Z",
                revision="0123456789abcdef",
                value=1.25,
                low=1.2,
                high=1.3,
            ),
            SeriesPoint(
                run="=cmd",
                started="2025-01-02T03:04:05.678Z",
                revision="",
                value=1.3,
                untrusted=True,
            ),
        ],
    )
]


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_comparison(name: str) -> None:
    check(f"compare.{ENDINGS[name]}", COMPARE_FORMATS[name](TWO_RUNS))


def test_every_format_is_there() -> None:
    assert set(COMPARE_FORMATS) == set(ENDINGS)


@pytest.mark.parametrize(
    ("name", "make"),
    [("gate.txt", gate_text), ("gate.md", gate_markdown), ("gate.json", gate_json)],
)
def test_gate(name: str, make: object) -> None:
    assert callable(make)
    check(name, make(OUTCOME))


@pytest.mark.parametrize("name", sorted(HISTORY_FORMATS))
def test_history(name: str) -> None:
    check(f"history.{ENDINGS[name]}", HISTORY_FORMATS[name](HISTORY))


def test_a_narrow_terminal_shows_the_same_numbers() -> None:
    wide, narrow = (compare_text(TWO_RUNS, width=width) for width in (120, 60))
    numbers = re.compile(r"\d+\.\d+x|\[\d[^\]]*\]")
    assert sorted(numbers.findall(wide)) == sorted(numbers.findall(narrow))


def test_a_row_without_support_never_shows_a_verdict() -> None:
    for make in COMPARE_FORMATS.values():
        lone = replace(TWO_RUNS, rows=TWO_RUNS.rows[4:], unpaired=(), mean=None)
        text = make(lone).lower()
        for verdict in ("▲ faster", "▼ slower", "= same", "? undecided", '"verdict": "'):
            assert verdict not in text


def test_json_has_its_schema_and_is_valid_with_numbers_that_are_not_finite() -> None:
    odd = replace(TWO_RUNS, rows=(replace(TWO_RUNS.rows[0], ratio=math.nan, p_value=math.inf),))
    document = json.loads(COMPARE_FORMATS["json"](odd), parse_constant=pytest.fail)
    assert (document["schema"], document["schema_version"]) == (
        COMPARE_SCHEMA,
        COMPARE_SCHEMA_VERSION,
    )
    assert document["rows"][0]["ratio"] is None
    assert document["rows"][0]["baseline_shift"] is not None
    gate = json.loads(gate_json(OUTCOME))
    assert (gate["schema"], gate["passed"]) == (GATE_SCHEMA, False)
    history = json.loads(HISTORY_FORMATS["json"](HISTORY))
    assert (history["schema"], len(history["series"][0]["points"])) == (HISTORY_SCHEMA, 2)


def test_csv_has_one_row_for_everything() -> None:
    rows = list(csv.DictReader(io.StringIO(COMPARE_FORMATS["csv"](TWO_RUNS))))
    assert [row["support"] for row in rows] == [
        *["common baseline"] * 3,
        *["not supported"] * 2,
        "A measured, B failed",
        "A absent, B measured",
    ]
    assert [row["verdict"] for row in rows[3:5]] == ["untrusted", ""]
    assert [row["trusted"] for row in rows[3:5]] == ["False", "True"]
    assert rows[0]["verdict"] == Verdict.SLOWER.value


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "img", "iframe", "object"} or any(
            name.startswith("on") for name, _ in attrs
        ):
            self.found.append(tag)


def test_names_on_a_page_are_escaped() -> None:
    page = COMPARE_FORMATS["html"](hostile_comparison())
    parser = _Scripts()
    parser.feed(page)
    assert parser.found == []
    assert "default-src 'none'" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    "text",
    [COMPARE_FORMATS["markdown"](hostile_comparison()), gate_markdown(hostile_outcome())],
    ids=["compare", "gate"],
)
def test_names_in_markdown_are_escaped(text: str) -> None:
    ours = re.sub(r"</?details>|</?summary>|<br>", "", text)
    assert "<" not in ours
    assert "@everyone" not in text
    assert "\x1b" not in text
    assert HOSTILE not in text


def test_names_in_terminals_and_tables_cannot_act() -> None:
    for text in (COMPARE_FORMATS["terminal"](hostile_comparison()), gate_text(hostile_outcome())):
        assert "\x1b" not in text
    rows = csv.reader(io.StringIO(COMPARE_FORMATS["csv"](hostile_comparison())))
    assert not [cell for row in rows for cell in row if cell.startswith("=")]
    assert "'=cmd" in HISTORY_FORMATS["csv"](HISTORY)


def test_rows_that_say_the_same_share_a_note() -> None:
    twice = replace(TWO_RUNS, rows=(TWO_RUNS.rows[2], TWO_RUNS.rows[2]))
    assert compare_text(twice).count("9 of 10 pairs were disturbed (A)") == 1
    # Its times, 9.13 ms on both sides, do not have the ratio of 0.934x that the speedups have.
    (note,) = notes_of_row(TWO_RUNS.rows[0])
    assert note.startswith("the ratio is of the speedups within each run")
    agreeing = replace(TWO_RUNS.rows[0], ratio=1.0)
    one = replace(agreeing.one, time_ns=agreeing.other.time_ns)
    assert notes_of_row(replace(agreeing, one=one)) == []


def test_empty_means_and_notes_are_stated() -> None:
    empty = replace(TWO_RUNS, rows=(), unpaired=(), facts=(), mean=None)
    for make in COMPARE_FORMATS.values():
        assert make(empty)
    assert mean_text(empty) == "no mean: there are no supported rows"
    assert drift_text(empty) == ""


def test_one_run_has_no_drift_against_itself() -> None:
    assert "+3" in drift_text(TWO_RUNS) or "-" in drift_text(TWO_RUNS)
    assert (
        drift_text(replace(TWO_RUNS, other=replace(TWO_RUNS.other, runs=TWO_RUNS.one.runs))) == ""
    )


def test_a_passing_gate_says_what_it_saw() -> None:
    fine = replace(OUTCOME, rows=OUTCOME.rows[5:])
    assert gate_verdict(fine) == "gate passed: 1 workload keeps its limit, 1 workload is new"
    assert gate_markdown(fine).startswith("### ✅ Gate passed")
    assert json.loads(gate_json(fine))["passed"] is True


def test_a_summary_for_the_public_names_no_host() -> None:
    assert "shed" not in gate_markdown(OUTCOME)
    assert "yard" not in gate_markdown(OUTCOME).replace("torchyard", "")

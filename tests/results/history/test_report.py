"""Histories as text, chart, data and page, and hostile names."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.history.sample_history import MemoryStore, points_of, series_of
from torchyard.core.comparison import Interval
from torchyard.results.history import report
from torchyard.results.history.changes import histories, p_text, range_text, ranked, value_text
from torchyard.results.history.charts import (
    MOST_POINTS,
    history_description,
    history_spec,
    plot_lines,
)
from torchyard.results.model import ChangePoint, Metric, RunFilter, SeriesHistory

GOLDEN = Path(__file__).parents[2] / "golden"
HOSTILE = "<script>alert(1)</script>|`*[x](y)\x1b[31m\u202e=1+1\n"


def sample() -> list[SeriesHistory]:
    """A step, a drift and nothing, the changed ones first."""
    drifting = [
        point._replace(value=point.value * (1.0 + 0.1 * place / 120), low=None, high=None)
        for place, point in enumerate(points_of(120, noise=0.01, untrusted=(30, 31)))
    ]
    table = {
        series_of("kernels/conv inference"): points_of(60, seed=3),
        series_of("kernels/matmul inference"): points_of(40, step_at=25, ratio=0.9),
        series_of("models/gpt training"): drifting,
    }
    series = histories(MemoryStore(table), RunFilter())
    return [*ranked(series), *(one for one in series if not one.changes)]


def hostile() -> SeriesHistory:
    points = [one._replace(run=HOSTILE, revision=HOSTILE) for one in points_of(40, step_at=25)]
    series = replace(series_of(HOSTILE), candidate=HOSTILE, baseline=HOSTILE, machine=HOSTILE)
    (history,) = histories(MemoryStore({series: points}), RunFilter())
    assert history.changes
    return history


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if not path.exists() or os.environ.get("TORCHYARD_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was written; look at it and run again")
    assert text == path.read_text(encoding="utf-8")


def test_text_of_changes() -> None:
    golden("history-changes.txt", report.changes_text(sample(), "speedup"))


def test_text_of_series_with_pictures() -> None:
    golden("history-series.txt", report.series_text(sample(), width=90))


def test_markdown() -> None:
    golden("history-changes.md", report.changes_markdown(sample(), "speedup"))
    golden("history-series.md", report.series_markdown(sample()))


def test_nothing_changed_is_reported() -> None:
    quiet = [one for one in sample() if not one.changes]
    assert "0 of 1 history changed in speedup" in report.changes_text(quiet, "speedup")
    assert "No change detected." in report.series_markdown(quiet)
    assert "no change detected" in report.series_text(quiet)
    assert "No matching history." in report.history_page([], "speedup")


def test_json_holds_everything() -> None:
    history = sample()
    document = json.loads(report.history_json(history, points=True))
    assert document["schema"] == report.HISTORY_SCHEMA
    first = document["series"][0]
    assert first["workload"] == "kernels/matmul inference"
    (change,) = first["changes"]
    assert (change["kind"], change["towards"], change["position"]) == ("step", "worse", 25)
    assert change["before"]["revision"] == "0000018"
    assert len(first["points"]) == first["runs"] == 40
    assert "points" not in json.loads(report.history_json(history, points=False))["series"][0]


def test_csv_has_a_row_for_each_change() -> None:
    rows = list(csv.DictReader(io.StringIO(report.history_csv(sample()))))
    assert [row["kind"] for row in rows] == ["step", "drift"]
    assert float(rows[0]["ratio"]) == pytest.approx(0.9, abs=0.01)
    assert rows[0]["after_revision"] == "0000019"


def test_hostile_names_are_escaped() -> None:
    one = hostile()
    for text in (report.changes_text([one], "speedup"), report.series_text([one])):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    for text in (report.changes_markdown([one], "speedup"), report.series_markdown([one])):
        assert "<script" not in text
        assert "](y)" not in text.replace("\\]", "")
    (row,) = csv.DictReader(io.StringIO(report.history_csv([replace_names(one, "=1+1")])))
    assert row["workload"] == "'=1+1"
    page = report.history_page([one], "speedup")
    assert "<script" not in page
    assert "\u202e" not in page
    assert "alert(1)" in page


def replace_names(one: SeriesHistory, name: str) -> SeriesHistory:
    return replace(one, series=replace(one.series, workload=name))


def test_page_needs_nothing_and_runs_nothing() -> None:
    page = report.history_page(sample(), "speedup")
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=[\"'](?!#)", page)
    assert not re.search(r"url\(", page)
    assert page.count("<section") == 3
    assert "0000018..0000019" in page
    assert len(page) < 400_000


def test_chart_has_points_levels_and_changes() -> None:
    step, drift, quiet = sample()
    spec = history_spec(step)
    texts = json.dumps(spec)
    assert '"from": 24.5' in texts
    assert len(spec["data"]["values"]) == 40
    levels = next(
        layer["data"]["values"]
        for layer in spec["layer"]
        if any("level" in row for row in layer.get("data", {}).get("values", ()))
    )
    assert [round(level["level"], 1) for level in levels] == [1.5, 1.4]
    assert [(level["from"], level["to"]) for level in levels] == [(-0.5, 24.5), (24.5, 39.5)]
    assert "drift over" in history_description(drift)
    assert "untrusted" in history_description(drift)
    assert "no change detected" in history_description(quiet)


def test_bad_runs_do_not_flatten_the_chart() -> None:
    drift = sample()[1]
    spec = history_spec(drift)
    beyond = [row["place"] for row in spec["data"]["values"] if row["beyond"]]
    assert {30, 31} <= set(beyond)
    assert len(beyond) <= 6
    points = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "point")
    low, high = points["encoding"]["y"]["scale"]["domain"]
    assert 1.3 < low < 1.5
    assert 1.6 < high < 1.8
    assert "triangles are outside the axis range" in history_description(drift)


def test_chart_puts_no_outside_text_where_it_is_code() -> None:
    spec = history_spec(hostile())
    outside = HOSTILE[:20]

    def check(value: object, *, data: bool) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                assert outside not in str(key)
                check(item, data=data or key == "values")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for item in value:
                check(item, data=data)
        elif not data:
            assert outside not in str(value)

    check(spec, data=False)


def test_many_points_are_thinned_and_that_is_reported() -> None:
    one = SeriesHistory(series=series_of(), points=tuple(points_of(2500)))
    assert len(history_spec(one)["data"]["values"]) <= MOST_POINTS
    assert "every 3th run is drawn" in history_description(one)


def test_plot_marks_changes_below_their_points() -> None:
    step = sample()[0]
    lines = plot_lines(step, width=100)
    marks = lines[-1]
    place = marks.index("▲") - lines[0].index("│") - 1
    assert place == 2 * 25
    assert all(len(line) <= 100 for line in lines)
    plain = plot_lines(step, width=100, ascii_only=True)
    assert "\n".join(plain).isascii()
    assert "^" in plain[-1]


@pytest.mark.parametrize("width", [30, 60, 100])
def test_plot_fits_its_width(width: int) -> None:
    one = SeriesHistory(series=series_of(), points=tuple(points_of(1234)))
    lines = plot_lines(one, width=width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).count("•") >= width // 3


def test_plot_of_few_equal_and_no_points() -> None:
    assert plot_lines(SeriesHistory(series=series_of(), points=())) == []
    flat = [point._replace(value=2.0) for point in points_of(3)]
    assert (
        "".join(plot_lines(SeriesHistory(series=series_of(), points=tuple(flat)))).count("•") == 3
    )
    untrusted = [point._replace(untrusted=True) for point in points_of(3, level=9.0)]
    assert (
        "".join(plot_lines(SeriesHistory(series=series_of(), points=tuple(untrusted)))).count("○")
        == 3
    )


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("speedup", 1.25, "1.250x"),
        ("time", 2.5e6, "2.50 ms"),
        ("compile", 12.0, "12.0 s"),
        ("memory", 3 * 2**30, "3.00 GiB"),
    ],
)
def test_values_have_units(metric: Metric, value: float, text: str) -> None:
    assert value_text(metric, value) == text


def test_words_of_a_change() -> None:
    before, after = points_of(2)
    change = ChangePoint(
        kind="step",
        position=1,
        last=1,
        before=before,
        after=after._replace(revision=""),
        ratio=1.1,
        interval=Interval(low=1.05, high=1.15),
        p_value=1e-9,
        p_adjusted=0.0123,
    )
    assert p_text(change) == "0.012"
    assert p_text(replace(change, p_adjusted=None)) == "< 0.0001"
    assert range_text(change) == "0000000..run-0001"

"""Vega-Lite charts: drawn immediately, drawn by the page, and without the library."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.report.test_page import HOSTILE
from tests.bench.sample_run import write_run
from tests.presentation.parsed_page import Page
from torchyard.bench.report.page import to_html
from torchyard.presentation import vega as vega_runtime
from torchyard.presentation.vega import (
    MISSING,
    chart_bases,
    charts_available,
    inline_chart,
    lazy_chart,
    packed_runtime,
    runtime_link,
    runtime_script,
    themed,
)

BARS: dict[str, Any] = {
    "width": 300,
    "data": {"values": [{"name": "one", "size": 1}, {"name": "two", "size": 2}]},
    "mark": {"type": "bar", "color": "var(--faster)"},
    "encoding": {
        "x": {"field": "size", "type": "quantitative"},
        "y": {"field": "name", "type": "nominal"},
    },
}


def data_of(figure: str) -> Any:
    script = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', figure, re.DOTALL)
    assert script is not None
    return json.loads(script.group(1))


def test_a_chart_that_is_drawn_at_once() -> None:
    figure = inline_chart(BARS, title="Sizes", description="Two bars")
    page = Page(str(figure))
    assert [tag for tag, _ in page.elements][:3] == ["figure", "figcaption", "svg"]
    svg = page.all("svg")[0]
    assert (svg["role"], svg["aria-label"]) == ("img", "Two bars")
    assert sum(path.get("fill") == "var(--faster)" for path in page.all("path")) == 2
    assert {"one", "two", "Sizes"} <= {text.strip() for text in page.texts}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_a_drawing_stays_text(text: str) -> None:
    spec = {**BARS, "data": {"values": [{"name": text, "size": 1}]}}
    figure = str(inline_chart(spec, title=text, description=text))
    page = Page(figure)
    assert {tag for tag, _ in page.elements} <= {
        "figure", "figcaption", "svg", "g", "path", "line", "text", "rect"
    }  # fmt: skip
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name.startswith("on")} | (names & {"style", "href"})
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", figure)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_chart_for_later_stays_text(text: str) -> None:
    spec = {"data": {"values": [{"name": text}]}}
    page = Page(str(lazy_chart(spec, title=text, description=text, base=text)))
    assert [tag for tag, _ in page.elements] == ["figure", "figcaption", "div", "script"]
    assert page.all("script") == [{"type": "application/json"}]
    assert set(page.all("div")[0]) == {"class", "role", "aria-label", "data-base"}


def test_a_chart_for_later_is_its_spec_or_what_differs_from_a_base() -> None:
    whole = data_of(str(lazy_chart(BARS, title="", description="d")))
    assert whole["mark"] == BARS["mark"]
    assert whole["config"]["background"] is None
    figure = str(lazy_chart({"data": {"rows": [[1]]}}, title="", description="d", base="bars"))
    assert data_of(figure) == {"data": {"rows": [[1]]}}
    assert 'data-base="bars"' in figure
    assert data_of(str(chart_bases({"bars": BARS})))["bars"]["mark"] == BARS["mark"]


def test_numbers_that_json_has_not_are_null() -> None:
    spec = {"data": {"values": [{"x": math.inf, "y": math.nan, "z": 1.5}]}}
    assert themed(spec)["data"]["values"] == [{"x": None, "y": None, "z": 1.5}]


def test_a_spec_may_override_the_theme() -> None:
    assert themed({"config": {"font": "serif"}})["config"]["font"] == "serif"
    assert themed({"config": {"font": "serif"}})["config"]["aria"] is False


def test_a_drawing_fetches_nothing() -> None:
    spec = {**BARS, "data": {"url": "http://192.0.2.1/x.json"}}
    with pytest.raises(ValueError, match=r"192\.0\.2\.1"):
        inline_chart(spec, title="", description="")


def test_the_runtime_is_packed_into_a_page_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runtime_script()
    assert script.rstrip().endswith(";")
    assert "torchyardEmbed" in script
    packed = re.search(r">([^<]*)<", str(packed_runtime()))
    assert packed is not None
    assert gzip.decompress(base64.b64decode(packed.group(1))).decode() == script
    # Another process finds it, a damaged one is made anew, and no home is needed.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = gzip.compress(b"window.torchyardEmbed = 1;")
    name = vega_runtime._cache_file()
    name.parent.mkdir(parents=True)
    name.write_bytes(kept)
    vega_runtime._compressed.cache_clear()
    try:
        assert runtime_script() == "window.torchyardEmbed = 1;"
        name.write_bytes(kept[:-9])
        vega_runtime._compressed.cache_clear()
        assert len(runtime_script()) > 500_000
        assert gzip.decompress(name.read_bytes()).decode() == runtime_script()
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name.name]
    finally:
        monkeypatch.undo()
        vega_runtime._compressed.cache_clear()


def test_pages_of_one_server_share_the_runtime() -> None:
    (element,) = Page(str(runtime_link('vega.js?"<x>'))).all("script")
    assert element["data-address"] == 'vega.js?"<x>'
    assert element["id"] == "chart-runtime"


def test_without_vl_convert_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert not charts_available()
    assert MISSING in str(inline_chart(BARS, title="Sizes", description=""))
    html = to_html(write_run(tmp_path / "run"))
    page = Page(html)
    assert MISSING in page.text
    assert "1.352x" in page.text
    assert "By launch: 1." in page.text
    assert not [script for script in page.all("script") if script.get("type")]
    assert "lazy-chart" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)

"""The page of a value profile. UPDATE_GOLDEN=1 rewrites the golden file; check the difference."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.presentation.page_outline import page_outline
from tests.presentation.parsed_page import Page
from tests.values.hostile_values import HOSTILE, hostile_profile
from tests.values.sample_profile import (
    MODEL,
    TRAIN,
    large_flow,
    place,
    sample_findings,
    sample_profile,
)
from torchyard.presentation.html_page import json_for_script
from torchyard.values.model import FlowGraph, SourceExcerpt, ValueFinding, ValueProfile, Worth
from torchyard.values.report.findings_page import (
    HEIGHT,
    MOST_FINDINGS,
    WIDTH,
    evidence_of,
    values_html,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "values.html.txt"
BARE = ValueProfile(format=1, state="finished", torch="2.13.0")
needs_layout = pytest.mark.skipif(
    find_spec("fast_sugiyama") is None, reason="the picture needs torchyard[graph]"
)


@pytest.fixture(scope="module")
def page_text() -> str:
    return values_html(sample_profile())


@pytest.fixture(scope="module")
def page(page_text: str) -> Page:
    return Page(page_text)


def flow_of(text: str) -> Any:
    found = re.search(
        r'<script type="application/json" id="flow-data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found[1]) if found else None


@needs_layout
def test_golden(page_text: str) -> None:
    outline = page_outline(page_text)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_bytes(outline.encode())
    assert outline.encode() == GOLDEN.read_bytes(), "UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_from_outside_are_escaped(page: Page, text: str) -> None:
    made = values_html(hostile_profile(text))
    made.encode()
    found = Page(made)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in page.elements}
    for tag in ("script", "style", "details", "canvas", "table", "svg"):
        assert len(found.all(tag)) == len(page.all(tag)), tag
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert not {"autofocus", "src", "style"} & names
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", made)
    assert "49 {" not in found.text
    assert len(made) < 600_000
    data = flow_of(made)
    if data is not None:
        assert max(map(len, data["texts"])) <= 400


def test_only_its_own_script_and_style_may_run(page_text: str, page: Page) -> None:
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        match = re.search(f"<{kind}>(.*?)</{kind}>", page_text, re.DOTALL)
        assert match is not None
        digest = base64.b64encode(hashlib.sha256(match.group(1).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert {script.get("type", "") for script in page.all("script")} <= {"", "application/json"}


def test_nothing_is_fetched(page_text: str, page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form"}
        assert attributes.get("href", "#").startswith("#")
    for word in ("url(", "@import", "http://", "https://", "fetch(", "XMLHttpRequest", "innerHTML"):
        assert word not in page_text, word


def test_links_have_their_places_and_ids_are_single(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        if "href" in attributes:
            assert attributes["href"][1:] in ids
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name, ids[0]) in ids


def test_it_can_be_read_aloud_and_used_without_a_mouse(page: Page) -> None:
    assert all(heading.get("scope") in {"col", "row"} for heading in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label")
    assert all(item["tabindex"] == "0" for item in page.all("div") if item.get("role") == "region")
    assert all(button["type"] == "button" for button in page.all("button"))
    for canvas in page.all("canvas"):
        assert canvas["tabindex"] == "0"
        assert "Arrow keys" in canvas["aria-label"]
    assert page.all("html")[0]["lang"] == "en"


def test_the_page_contains_the_report(page: Page) -> None:
    for text in (
        "Fixing 3 of them: estimated saving 0.71-27.1% of a step (CPU time), no upper bound",
        "dead initialisation",
        "mse_loss_backward > zeros_like > zero_",
        "loss = F.mse_loss(output, target)",
        'if "<b>" in log and loss < best & better:',
        "1.21x [1.19, 1.23]",
        "a huge number",
        "needed for: random",
        "a result changed",
        "1907 of 50257 rows have a gradient",
        "layers.0.attn (4), layers.1.attn (4), layers.2.attn (4)",
        "196 times in 4 steps (1-4)",
        "Release gradients",
        "155 among 4,096 sampled",
        "tril at modelkit/layers.py:13",
        "overwritten while the memory for copies",
        "torch.compile was disabled",
        "train.py --epochs 1 --name 'two words'",
        "Observed in every call, but not tested",
    ):
        assert text in page.text, text


def test_findings_are_sorted_by_cost_and_can_be_filtered(page: Page) -> None:
    cards = [item for item in page.all("details") if item.get("id", "").startswith("finding-")]
    assert [card["id"] for card in cards] == [f"finding-{n}" for n in range(1, 7)]
    assert cards[0]["data-pattern"] == "dead initialisation"
    assert {card["data-certainty"] for card in cards} == {"proven", "likely", "input-dependent"}
    chips = [item for item in page.all("button") if "data-value" in item]
    for kind in ("pattern", "certainty"):
        offered = {chip["data-value"] for chip in chips if chip["data-kind"] == kind}
        assert offered == {card[f"data-{kind}"] for card in cards}


def test_source_excerpts_are_those_of_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("".join(f"line_{number} = {number}\n" for number in range(1, 31)))
    finding = replace(sample_findings()[0], place=place(20, file=str(file)))
    profile = replace(BARE, findings=(finding,))
    text = Page(values_html(profile)).text
    assert "17 line_17 = 17" in text
    assert "23 line_23 = 23" in text
    assert "line_24" not in text
    kept = SourceExcerpt(file=str(file), first_line=20, lines=("as_it_was = True",))
    text = Page(values_html(replace(profile, excerpts=(kept,)))).text
    assert "as_it_was = True" in text
    assert "line_20" not in text


def test_findings_without_source() -> None:
    finding = replace(sample_findings()[0], place=place(20, file="<stdin>"))
    made = Page(values_html(replace(BARE, findings=(finding,))))
    assert "figure" not in {tag for tag, attributes in made.elements if "source" in str(attributes)}


def test_empty_profile() -> None:
    text = Page(values_html(BARE)).text
    assert "No findings, because no operator was observed." in text
    assert "The flow graph was not recorded." in text


def test_findings_without_data_are_shown() -> None:
    bare = ValueFinding(pattern="of tomorrow", operator="", place=place(0, file=""))
    text = Page(values_html(replace(BARE, findings=(bare,)))).text
    assert "of tomorrow" in text
    assert "unknown location" in text
    assert "Observed, not tested." in text


def test_non_finite_numbers() -> None:
    nan = float("nan")
    worth = Worth(per_step_ns=nan, share_of_step=nan, operator_ns=nan, wasted_ns=nan, gain=nan)
    finding = replace(sample_findings()[0], worth=worth, evidence={"zero_share": nan, "range": nan})
    profile = replace(BARE, step_ns=nan, seconds=nan, findings=(finding,))
    assert "dead initialisation" in Page(values_html(profile)).text


def test_hidden_findings_are_counted() -> None:
    finding = sample_findings()[4]
    many = tuple(replace(finding, bytes_wasted=number) for number in range(MOST_FINDINGS + 40))
    made = values_html(replace(BARE, findings=many))
    page = Page(made)
    assert sum(item.get("id", "").startswith("finding-") for item in page.all("details")) == 300
    assert "40 smaller findings are not shown" in page.text
    assert len(made) < 3_000_000


def test_without_the_layout_library_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    made = values_html(sample_profile())
    page = Page(made)
    assert "pip install 'torchyard[graph]'" in page.text
    assert not page.all("canvas")
    assert flow_of(made) is None
    assert "The 31 operators that write the most bytes" in page.text
    assert "embedding_dense_backward" in page.text


@needs_layout
def test_the_graph_has_every_node_and_knows_its_findings(page_text: str) -> None:
    data = flow_of(page_text)
    profile = sample_profile()
    assert len(data["nodes"]) == len(profile.flow.nodes)
    kinds = [view["kind"] for view in data["views"]]
    assert kinds == ["heaviest", "lines", "waste", "modules"]
    assert len(data["findings"]) == 6
    for view in data["views"]:
        assert len(view["members"]) == len(view["x"]) == len(view["y"])
        spots = set(zip(view["x"], view["y"], strict=True))
        assert len(spots) == len(view["members"]), "two operators at one spot"
        ends = [*view["edges"][0::4], *view["edges"][1::4]]
        assert set(ends) <= set(range(len(view["members"])))
        assert set(view["members"]) <= set(range(len(data["nodes"]) + len(data["groups"])))
    buttons = [item for item in Page(page_text).all("button") if "data-item" in item]
    assert len(buttons) == 5  # one finding has no node
    first = data["nodes"][int(buttons[0]["data-item"])]
    assert data["texts"][first[0]] == "zero_"
    assert first[9] == [0]


@needs_layout
def test_ten_thousand_operators_are_a_page_of_bounded_size() -> None:
    made = values_html(sample_profile(flow=large_flow()))
    assert len(made.encode()) < 6_000_000
    data = flow_of(made)
    assert [len(view["members"]) for view in data["views"][:5]] == [60, 300, 1000, 3000, 10_000]
    assert data["start"] == 1
    assert "300 of 10,000 operators" in data["views"][1]["about"]


def test_json_cannot_end_its_element() -> None:
    text = json_for_script({"a": "</script><!--<script>&\u2028", "b": [1, 2.5, None]})
    assert not {"<", ">", "&", "\u2028"} & set(text)
    assert json.loads(text) == {"a": "</script><!--<script>&\u2028", "b": [1, 2.5, None]}


def test_histograms_fill_their_area() -> None:
    made = evidence_of({"histogram": {"low": -1.0, "high": 3, "counts": [1, 0, 4000, 2]}}).histogram
    assert made is not None
    assert len(made.bars) == 4
    assert max(bar.height for bar in made.bars) == HEIGHT
    assert made.bars[1].height == 0
    assert all(bar.height == 0 or bar.height >= 1.5 for bar in made.bars)
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH for bar in made.bars)
    assert made.bars[2].title == "1 to 2: 4,000"
    assert made.label.endswith("99.9% of them are 1 to 2")


@pytest.mark.parametrize(
    "histogram",
    [
        None,
        [],
        {},
        {"counts": []},
        {"counts": [1, "2"], "low": 0, "high": 1},
        {"counts": [1, -2], "low": 0, "high": 1},
        {"counts": [0, 0], "low": 0, "high": 1},
        {"counts": [1], "low": float("nan"), "high": 1},
        {"counts": [1], "low": 0, "high": 10**400},
        {"counts": 7, "low": 0, "high": 1},
    ],
)
def test_histograms_of_another_form_are_none(histogram: Any) -> None:
    assert evidence_of({"histogram": histogram}).histogram is None


def test_unknown_evidence_is_shown_in_short_form() -> None:
    shown = dict(evidence_of({"fits": "bfloat16", "parts": 3, "more_of_it": "x" * 500}).rows)
    assert shown["fits"] == "bfloat16"
    assert shown["parts"] == "3"
    assert len(shown["more of it"]) == 80
    assert len(evidence_of({f"key {n}": n for n in range(500)}).rows) == 12
    assert evidence_of({"sample": [True, 1.5, 10**30, "nan", None]}).sample == (
        "True",
        "1.5",
        "1e+30",
        "nan",
        "None",
    )


def test_locations_of_evidence_are_named() -> None:
    first = {"operator": "aten::mm", "file": MODEL, "line": 3, "backward": True}
    rows = dict(evidence_of({"first": first, "overwritten_by": "nonsense"}).rows)
    assert rows["the same bits as"] == "mm at modelkit/layers.py:3, backward"
    assert rows["overwritten by"] == "nonsense"


def test_an_excerpt_of_another_file_is_not_shown() -> None:
    profile = sample_profile(
        flow=FlowGraph(), excerpts=(SourceExcerpt(file=TRAIN, first_line=90, lines=("x",)),)
    )
    assert "F.mse_loss" not in Page(values_html(profile)).text

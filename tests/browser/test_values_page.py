"""The page of a value profile in a real browser: drawing, filters, no console messages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser.devtools import CHROMIUM, Browser
from tests.values.hostile_values import HOSTILE, hostile_profile
from tests.values.sample_profile import large_flow, sample_profile
from torchyard.values.report.findings_page import values_html

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.skipif(find_spec("fast_sugiyama") is None, reason="needs torchyard[graph]"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "values.html"
    path.write_text(values_html(sample_profile()), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def silent(browser: Browser) -> Iterator[None]:
    browser.said.clear()
    yield
    browser.frame()
    assert browser.said == []


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({selector!r}).innerText"))


def shown(browser: Browser) -> int:
    count = "document.querySelectorAll('.finding:not([hidden])').length"
    return int(browser.value(count))


def enter(browser: Browser, field: str, value: str) -> None:
    """Type into an input."""
    browser.value(
        f"(field => {{ field.value = {value!r}; field.dispatchEvent(new Event('input')); }})"
        f"(document.getElementById({field!r}))"
    )


def dots(browser: Browser) -> int:
    """Pixels of the picture that are not empty."""
    return int(
        browser.value(
            "(() => { const c = document.getElementById('canvas');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()"
        )
    )


@pytest.mark.parametrize("dark", [False, True])
def test_it_shows_findings_and_a_picture(browser: Browser, sample: Path, dark: bool) -> None:
    browser.open(sample, dark=dark)
    browser.frame()
    assert shown(browser) == 6
    assert text(browser, "#shown") == "all 6 shown"
    browser.value("document.querySelector('[data-kind=heaviest]').click()")
    browser.frame()
    assert text(browser, "#about") == "31 of 31 operators, 100% of written bytes"
    assert dots(browser) > 5000
    page = browser.value("getComputedStyle(document.body).backgroundColor")
    assert page == ("rgb(21, 24, 27)" if dark else "rgb(253, 253, 252)")


def test_the_graph_opens_on_the_largest_waste_with_its_source(
    browser: Browser, sample: Path
) -> None:
    browser.open(sample)
    browser.frame()
    pressed = "document.querySelector('#kinds [aria-pressed=true]').dataset.kind"
    assert browser.value(pressed) == "lines"
    assert "source lines with findings" in text(browser, "#about")
    panel = text(browser, "#panel")
    assert "Source lines with findings" in panel
    assert "of its writes" in panel
    assert "location" in panel
    assert browser.value("document.querySelectorAll('#panel a[href^=\"#finding-\"]').length") >= 1


def test_filters(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    chip = "document.querySelector('[data-value={}]').click()"
    browser.value(chip.format("proven"))
    assert shown(browser) == 2
    browser.value(chip.format("likely"))
    assert shown(browser) == 5
    browser.value(chip.format("duplicate"))
    assert shown(browser) == 1
    assert text(browser, "#shown") == "1 of 6 shown"
    for name in ("proven", "likely", "duplicate"):
        browser.value(chip.format(name))
    enter(browser, "find", "TRIL layers")
    assert shown(browser) == 2


def test_from_a_finding_to_the_graph_and_back(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    browser.value("document.querySelector('#finding-2 .to-graph').click()")
    assert text(browser, "#panel h3") == "embedding_dense_backward"
    assert "96% of its writes" in text(browser, "#panel")
    assert "select_backward" in text(browser, "#panel")
    browser.value("document.querySelector('#panel a').click()")
    browser.value("new Promise((done) => setTimeout(done, 50))")
    assert browser.value("document.getElementById('finding-2').open") is True
    assert browser.value("document.getElementById('finding-1').open") is False


def test_a_click_chooses_an_operator_and_the_panel_walks_on(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    browser.value("document.querySelector('#finding-2 .to-graph').click()")
    browser.value("document.getElementById('canvas').scrollIntoView({ block: 'center' })")
    browser.frame()
    browser.press("Escape")
    assert "Select a box" in text(browser, "#panel")
    box = browser.value(
        "(({x, y, width, height}) => [x, y, width, height])(document.getElementById('canvas').getBoundingClientRect())"
    )
    browser.click(box[0] + box[2] / 2, box[1] + box[3] / 2)
    assert text(browser, "#panel h3") == "embedding_dense_backward"
    browser.value("document.querySelector('#panel li button').click()")
    assert text(browser, "#panel h3") == "select_backward"


def test_keys_move_and_zoom(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    browser.value("document.getElementById('canvas').focus()")
    picture = "document.getElementById('canvas').toDataURL()"
    seen = []
    for key in ("0", "+", "ArrowDown", "ArrowRight", "-"):
        browser.press(key)
        browser.frame()
        seen.append(browser.value(picture))
    assert len(set(seen)) == len(seen)
    browser.press("0")
    browser.frame()
    assert browser.value(picture) == seen[0]


def test_search_and_views(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    browser.value("document.querySelector('[data-kind=heaviest]').click()")
    enter(browser, "search", "bmm layers.1")
    assert text(browser, "#panel h4") == "2 matches"
    enter(browser, "search", "nowhere")
    assert text(browser, "#panel") == "No matches in this view."
    browser.value("document.querySelector('[data-kind=modules]').click()")
    assert "modules, forward and backward separately" in text(browser, "#about")
    enter(browser, "search", "layers.0")
    browser.value("document.querySelector('#panel button').click()")
    assert "operators" in text(browser, "#panel")
    browser.value(
        "[...document.querySelectorAll('#panel button')].find((b) => b.textContent === 'Show its operators').click()"
    )
    assert text(browser, "#about").startswith("31 of 31 operators")
    browser.value("document.querySelector('[data-kind=waste]').click()")
    assert "operators with findings and their neighbours" in text(browser, "#about")


@pytest.mark.parametrize("evil", HOSTILE)
def test_nothing_from_outside_runs(browser: Browser, tmp_path: Path, evil: str) -> None:
    path = tmp_path / "evil.html"
    path.write_text(values_html(hostile_profile(evil)), encoding="utf-8")
    browser.open(path)
    browser.frame()
    browser.value("document.querySelector('.to-graph').click()")
    assert shown(browser) == 6
    assert browser.value("document.querySelectorAll('img, b').length") == 0
    assert browser.value("document.querySelectorAll('script').length") == 2


def test_ten_thousand_operators_stay_usable(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(values_html(sample_profile(flow=large_flow())), encoding="utf-8")
    browser.open(path)
    browser.frame()
    browser.value("document.querySelector('[data-kind=heaviest]').click()")
    assert text(browser, "#about").startswith("300 of 10,000 operators")
    enter(browser, "size", "4")
    browser.frame()
    assert text(browser, "#about").startswith("10,000 of 10,000 operators")
    browser.value("document.getElementById('fit').click()")
    browser.frame()
    assert dots(browser) > 5000


def test_it_fits_a_narrow_window(browser: Browser, sample: Path) -> None:
    browser.open(sample, width=420, height=800)
    assert browser.value("document.documentElement.scrollWidth") <= 420

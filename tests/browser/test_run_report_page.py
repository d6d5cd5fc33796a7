"""The run report in a real browser: loading, sorting, filters, charts, printing, no network requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.report.test_page import HOSTILE, hostile_run
from tests.bench.sample_run import COMPARISONS, write_run
from tests.browser.browser_page import (
    DARK,
    PHONE_WIDTH,
    SCREENSHOTS,
    Browser,
    choose_dark,
    is_soon,
    open_browser,
    overflow,
    save_picture,
    wait_until,
)
from torchyard.bench.report.page import to_html

pytestmark = pytest.mark.browser

DRAWN = """[...document.querySelectorAll('details[open] .lazy-chart')]
  .every((chart) => chart.dataset.state === 'drawn')"""
SHOWN = "table.results tbody tr[data-part]:not([hidden])"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    page = folder / "report.html"
    page.write_text(to_html(write_run(folder / "run")), encoding="utf-8")
    return page.as_uri()


@pytest.mark.parametrize(("name", "dark"), [("light", False), ("dark", True)])
def test_both_themes(browser: Browser, address: str, name: str, dark: bool) -> None:
    with browser.page(dark=dark) as (page, watched):
        page.goto(address)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(21, 24, 27)" if dark else "rgb(253, 253, 252)")
        # Charts that were drawn when the page was written follow the theme, too.
        fills = page.evaluate(
            "[...document.querySelectorAll('.forest svg path')].map((p) => getComputedStyle(p).fill)"
        )
        assert ("rgb(108, 184, 236)" if dark else "rgb(0, 101, 158)") in fills
        assert watched.requests == [address]
        save_picture(page, f"report-{name}", whole=True)


def test_the_switch_of_themes_is_remembered(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(address)
        button = page.locator("button.theme")
        assert button.inner_text() == "Theme: auto"
        button.click()
        assert button.inner_text() == "Theme: light"
        other = choose_dark(page, address)
        page.reload()
        wait_until(page, DARK)
        assert button.inner_text() == "Theme: dark"
        # A choice on one page is seen on all that are open: on the second try, if Chromium lost one.
        for name in ("auto", "light"):
            other.click("button.theme")
            condition = f"document.querySelector('button.theme').textContent === 'Theme: {name}'"
            if is_soon(page, condition, limit_s=10.0):
                break
        else:
            pytest.fail("a choice on another page was not followed")
        assert not page.evaluate(DARK)


def test_sorting(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(address)
        heading = page.locator("th", has=page.locator("button[data-sort=speedup]"))
        first = page.locator(f"{SHOWN} >> nth=0")
        page.click("button[data-sort=speedup]")
        assert heading.get_attribute("aria-sort") == "ascending"
        assert "kernels/attention" in first.inner_text()
        page.click("button[data-sort=speedup]")
        assert heading.get_attribute("aria-sort") == "descending"
        assert "models/gpt" in first.inner_text()
        # What has no number is last either way.
        assert "models/lstm" in page.locator(SHOWN).last.inner_text()
        page.click("button[data-sort=verdict]")
        assert heading.get_attribute("aria-sort") is None
        assert "faster" in first.inner_text()


def test_filters_and_the_address(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(address)
        shown, count = page.locator(SHOWN), page.locator(".filters output")
        assert count.inner_text() == "all 7 shown"
        page.select_option("[name=suite]", "models")
        assert count.inner_text() == "3 of 7 shown"
        page.select_option("[name=mode]", "training")
        assert shown.count() == 1
        assert page.locator("details.part:not([hidden])").count() == 1
        page.select_option("[name=mode]", "")
        page.fill("[name=find]", "KILLED by")
        assert shown.count() == 1
        page.click("button[data-sort=label]")
        wait_until(page, "location.hash === '#find=KILLED+by&suite=models&sort=label'")
        page.reload()
        assert count.inner_text() == "1 of 7 shown"
        assert page.input_value("[name=find]") == "KILLED by"
        page.fill("[name=find]", "nothing is called so")
        assert page.get_by_text("No comparison matches the filter.").is_visible()
        page.get_by_role("button", name="Clear").click()
        assert count.inner_text() == "all 7 shown"
        wait_until(page, "!location.href.includes('#')")
        page.select_option("[name=verdict]", "undecided")
        page.select_option("[name=candidate]", "tcmalloc")
        assert shown.count() == 1


@pytest.mark.parametrize(
    "state", ["suite=nowhere", "sort=nothing", "sort=-", "find=%00%3Cimg", "x=y", "%E0%A4%A=1"]
)
def test_any_address_is_a_page(browser: Browser, address: str, state: str) -> None:
    with browser.page() as (page, _):
        page.goto(f"{address}#{state}")
        count = page.locator(SHOWN).count()
        assert count == (0 if state.startswith("find") else 7)


def test_a_part_is_opened_by_its_link_and_draws_its_charts(browser: Browser, address: str) -> None:
    with browser.page(height=1400) as (page, watched):
        page.goto(address)
        assert page.evaluate("window.torchyardEmbed") is None
        page.locator("table.results a").first.click()
        part = page.locator("#comparison-1")
        assert part.get_attribute("open") is not None
        wait_until(page, DRAWN)
        assert part.locator(".lazy-chart svg").count() == 3
        assert part.locator(".lazy-chart svg path").count() > 100
        part.locator(".lazy-chart svg path[fill*=candidate]").first.hover(force=True)
        page.wait_for_selector(".chart-tip:not([hidden])")
        assert "variant: candidate" in page.locator(".chart-tip").inner_text()
        assert watched.requests == [address]
        save_picture(page, "report-part")


def test_a_part_is_opened_by_its_address(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(f"{address}#comparison-6")
        assert page.locator("#comparison-6 pre.log").is_visible()
        assert "compiling graph 2" in page.locator("#comparison-6 pre.log").inner_text()


def test_every_chart_of_the_page_can_be_drawn(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(address)
        page.get_by_role("button", name="Open all").click()
        for chart in page.locator(".lazy-chart").all():
            chart.scroll_into_view_if_needed()
        wait_until(page, DRAWN)
        page.get_by_role("button", name="Close all").click()
        assert page.locator("details.part[open]").count() == 0


def test_a_phone(browser: Browser, address: str) -> None:
    with browser.page(width=PHONE_WIDTH, height=780) as (page, _):
        page.goto(address)
        assert overflow(page) == 0
        page.select_option("[name=sort]", "-speedup")
        assert "models/gpt" in page.locator(f"{SHOWN} >> nth=0").inner_text()
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        for chart in page.locator("#comparison-1 .lazy-chart").all():
            chart.scroll_into_view_if_needed()
        wait_until(page, "document.querySelectorAll('[data-state=drawn]').length >= 3")
        assert overflow(page) == 0
        save_picture(page, "report-phone", whole=True)


def test_everything_works_by_keyboard(browser: Browser, address: str) -> None:
    with browser.page() as (page, _):
        page.goto(address)
        focused = "document.activeElement.textContent.trim()"
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == "Skip to the results"
        save_picture(page, "report-skip-link")
        page.keyboard.press("Enter")
        wait_until(page, "location.hash === '#results'")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "find"
        for _ in range(20):
            if page.evaluate("document.activeElement.dataset.sort") == "speedup":
                break
            page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.press("Enter")
        assert "kernels/attention" in page.locator(f"{SHOWN} >> nth=0").inner_text()
        page.locator("#comparison-1 summary").focus()
        page.keyboard.press("Enter")
        assert page.locator("#comparison-1").get_attribute("open") is not None


def test_printing(browser: Browser, address: str) -> None:
    with browser.page(dark=True) as (page, _):
        page.goto(address)
        page.emulate_media(media="print")
        assert not page.locator(".filters").is_visible()
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") >= 4
        # Everything is on paper, and folded again afterwards.
        assert page.locator("details[open]").count() == 0
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (SCREENSHOTS / "report.pdf").write_bytes(pdf)


def test_everything_is_visible_without_scripts(browser: Browser, address: str) -> None:
    with browser.page(scripts=False) as (page, _):
        page.goto(address)
        assert page.locator(SHOWN).count() == 7
        assert page.locator(".forest.wide-screen svg").is_visible()
        assert not page.locator(".filters").is_visible()
        assert not page.locator("button.theme").is_visible()
        page.locator("#comparison-1 summary").click()
        assert page.get_by_text("By launch: 1.3").first.is_visible()


def test_text_from_outside_stays_text(browser: Browser, tmp_path: Path) -> None:
    for number, text in enumerate((HOSTILE[1], HOSTILE[2], HOSTILE[-1])):
        path = tmp_path / f"{number}.html"
        path.write_text(to_html(hostile_run(tmp_path / str(number), text)), encoding="utf-8")
        with browser.page() as (page, _):
            page.on("dialog", lambda dialog: pytest.fail(dialog.message))
            page.goto(path.as_uri())
            page.locator("details.part summary").first.click()
            wait_until(page, DRAWN)


def test_console_errors_and_requests_are_detected(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<title>x</title><link rel="icon" href="data:,"><img src="http://192.0.2.1/x.png">'
        "<script>console.error('said'); throw new Error('thrown')</script>"
    )
    seen = ("leaves the machine", "said", "thrown", "Failed to load resource")
    with browser.page(expected=seen) as (page, watched):
        page.goto(path.as_uri())
        page.wait_for_timeout(200)
    for text in seen[:3]:
        assert any(text in fault for fault in watched.faults)
    with pytest.raises(AssertionError, match="thrown"), browser.page() as (page, _):
        page.goto(path.as_uri())


def test_a_phone_with_long_lines_in_logs_facts_and_the_command(
    browser: Browser, tmp_path: Path
) -> None:
    failed = COMPARISONS[5]
    assert failed.failure is not None
    log = "x" * 12_000 + "\n" + "word " * 2_000
    failed = replace(failed, failure=replace(failed.failure, log_tail=log, message=log))
    run = write_run(tmp_path / "run")
    facts = {**run.info["machine"], "config": "first\n" + "y" * 9_000}
    info = {**run.info, "machine": facts, "command": ["torchyard", "z" * 9_000]}
    page_file = tmp_path / "report.html"
    long_run = replace(run, comparisons=(*COMPARISONS[:5], failed), info=info)
    page_file.write_text(to_html(long_run), encoding="utf-8")
    with browser.page(width=PHONE_WIDTH, height=780) as (page, _):
        page.goto(page_file.as_uri())
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert overflow(page) == 0


def test_the_forest_plot_on_a_phone_has_letters_of_a_readable_size(
    browser: Browser, address: str
) -> None:
    with browser.page(width=PHONE_WIDTH, height=780) as (page, _):
        page.goto(address)
        assert not page.locator(".forest.wide-screen").is_visible()
        label = page.locator(".forest.narrow-screen text", has_text="kernels/matmul").first
        box = label.bounding_box()
        assert box is not None
        assert box["height"] >= 10
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE_WIDTH

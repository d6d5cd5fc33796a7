"""The page of a sweep in a real browser: both themes, a phone, filters, hostile names, no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.browser_page import PHONE_WIDTH, Browser, open_browser, overflow, save_picture
from tests.sweep.report.test_formats import hostile
from tests.sweep.sample_sweeps import null_sweep, whole_sweep
from torchyard.sweep.model import SweepSummary
from torchyard.sweep.report.formats import render_sweep
from torchyard.sweep.summary import sweep_summary

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


def written(folder: Path, summary: SweepSummary) -> str:
    page = folder / "sweep.html"
    page.write_text(render_sweep(summary, "html"), encoding="utf-8")
    return page.as_uri()


@pytest.mark.parametrize(("name", "dark"), [("light", False), ("dark", True)])
def test_both_themes(browser: Browser, tmp_path: Path, name: str, dark: bool) -> None:
    address = written(tmp_path, sweep_summary(*whole_sweep()))
    with browser.page(dark=dark) as (page, watched):
        page.goto(address)
        assert page.locator(".group").count() == 3
        assert page.locator("tr[data-verdict]").count() == 22
        assert page.locator("details.failure").count() == 8
        assert watched.requests == [address]
        save_picture(page, f"sweep-{name}", whole=True)


def test_filters_and_order(browser: Browser, tmp_path: Path) -> None:
    with browser.page() as (page, _):
        page.goto(written(tmp_path, sweep_summary(*whole_sweep())))
        page.select_option("[name=candidate]", "aot_eager")
        assert page.locator("tr[data-verdict]:visible").count() == 11
        page.fill("[name=find]", "matmul float")
        assert page.locator("tr[data-verdict]:visible").count() == 0
        assert page.locator(".group:visible").count() == 0
        page.fill("[name=find]", "matmul")
        assert page.locator("output").inner_text() == "2 of 22 shown"
        page.reload()
        assert page.locator("tr[data-verdict]:visible").count() == 2
        page.click(".filters button")
        assert page.locator("output").inner_text() == "all 22 shown"
        page.select_option("[name=order]", "slowest")
        first = page.locator(".group").first.locator("tr[data-verdict]")
        speeds = first.evaluate_all("rows => rows.map((row) => row.dataset.speedup)")
        known = [float(speed) for speed in speeds if speed]
        assert known == sorted(known)
        assert speeds[-1] == ""


@pytest.mark.parametrize("kind", ["whole", "null"])
def test_a_phone_with_and_without_scripts(browser: Browser, tmp_path: Path, kind: str) -> None:
    parts = whole_sweep() if kind == "whole" else null_sweep(40)
    address = written(tmp_path, sweep_summary(*parts))
    with browser.page(width=PHONE_WIDTH, scripts=False) as (page, _):
        page.goto(address)
        assert page.locator("tr[data-verdict]").first.is_visible()
        assert page.locator(".filters").is_hidden()
    with browser.page(width=PHONE_WIDTH) as (page, _):
        page.goto(address)
        assert overflow(page) == 0
        save_picture(page, f"sweep-{kind}-phone", whole=True)


def test_hostile_names_are_escaped(browser: Browser, tmp_path: Path) -> None:
    with browser.page() as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
        page.goto(written(tmp_path, hostile()))
        assert "alert(1)" in page.locator("h1").inner_text()
        assert page.locator("img").count() == 0
        page.locator("details.failure summary").click()
        assert "<script>1</script>" in page.locator("pre.log").inner_text()

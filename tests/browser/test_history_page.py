"""The history page in a real browser: both themes, a phone, hostile names, no network requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.browser.browser_page import PHONE_WIDTH, Browser, open_browser, overflow, save_picture
from tests.results.history.test_report import hostile, sample
from torchyard.results.history.report import history_page
from torchyard.results.model import SeriesHistory

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


def written(folder: Path, found: Sequence[SeriesHistory]) -> str:
    page = folder / "history.html"
    page.write_text(history_page(found, "speedup"), encoding="utf-8")
    return page.as_uri()


@pytest.mark.parametrize(("name", "dark"), [("light", False), ("dark", True)])
def test_both_themes(browser: Browser, tmp_path: Path, name: str, dark: bool) -> None:
    address = written(tmp_path, sample())
    with browser.page(dark=dark) as (page, watched):
        page.goto(address)
        assert page.locator("figure.chart svg").count() == 3
        assert page.locator(".towards").all_inner_texts() == ["▼ worse", "▲ better"]
        assert watched.requests == [address]
        save_picture(page, f"history-{name}", whole=True)


def test_a_phone_and_no_scripts(browser: Browser, tmp_path: Path) -> None:
    with browser.page(width=PHONE_WIDTH, scripts=False) as (page, _):
        page.goto(written(tmp_path, sample()))
        assert page.locator("figure.chart svg").first.is_visible()
        save_picture(page, "history-phone", whole=True)
    with browser.page(width=PHONE_WIDTH) as (page, _):
        page.goto(written(tmp_path, sample()))
        assert overflow(page) == 0


def test_hostile_names_are_escaped(browser: Browser, tmp_path: Path) -> None:
    with browser.page() as (page, _):
        page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
        page.goto(written(tmp_path, [hostile()]))
        assert "alert(1)" in page.locator("h3").inner_text()
        assert page.locator("script").count() == 0

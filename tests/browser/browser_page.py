"""A real browser for tests of pages: Debian's Chromium, driven by Playwright, without network.

`open_browser` gives a `Browser`; `Browser.page` gives a page on which every word of the console that
warns, every error of a script, every refusal by the security policy and every request that leaves
the machine makes the test fail. Pictures go to `build/screenshots`. Tests that use it carry
`pytest.mark.browser`; without Chromium or Playwright they are skipped, and say why.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import ConsoleMessage, Page, Request, Route


CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOTS: Final = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PHONE_WIDTH: Final = 360
DARK: Final = "getComputedStyle(document.body).backgroundColor === 'rgb(21, 24, 27)'"
"""Whether a page is shown in the dark theme."""
_STORED_MS: Final = 1000
"""Until what a page stores is with the browser, also on a busy machine."""
_TRIES: Final = 5
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_WORDLESS: Final = frozenset({"log", "info", "debug"})


@dataclass
class PageEvents:
    """What went wrong on a page, as it happens."""

    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        """Warnings and errors; the policy's refusals are among them."""
        if message.type not in _WORDLESS:
            self.faults.append(f"console {message.type}: {message.text}")

    def on_error(self, error: Exception) -> None:
        """What no script caught."""
        self.faults.append(f"error: {error}")

    def on_request(self, request: Request) -> None:
        """Every request, for tests that count them."""
        self.requests.append(request.url)

    def let_in(self, route: Route) -> None:
        """Nothing leaves the machine, and trying is a fault."""
        address = urlsplit(route.request.url)
        if address.scheme in {"file", "data", "blob", "about"} or address.hostname in _LOCAL:
            route.continue_()
        else:
            self.faults.append(f"request leaves the machine: {route.request.url}")
            route.abort()


class Browser:
    """One Chromium for many pages."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium

    @contextmanager
    def page(
        self,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        expected: tuple[str, ...] = (),
    ) -> Iterator[tuple[Page, PageEvents]]:
        """A fresh page; faults that do not hold one of the `expected` texts fail the test."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        watched = PageEvents()
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", watched.on_console)
        page.on("pageerror", watched.on_error)
        page.on("request", watched.on_request)
        context.route("**/*", watched.let_in)
        try:
            yield page, watched
        finally:
            context.close()
        surprises = [fault for fault in watched.faults if not any(e in fault for e in expected)]
        assert surprises == [], "\n".join(surprises)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Skips the test, with the reason, where there is no browser to open."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=[*_FLAGS])
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


def save_picture(page: Page, name: str, *, whole: bool = False) -> Path:
    """A picture of what is seen, or of the whole page, kept after the test."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{os.path.basename(name)}.png"  # noqa: PTH119 - never elsewhere
    page.screenshot(path=path, full_page=whole)
    return path


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    width: int = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


def wait_until(page: Page, expression: str, *, limit_s: float = 30.0) -> None:
    """Wait until an expression is true; Playwright's own way evaluates text, which pages forbid."""
    assert is_soon(page, expression, limit_s=limit_s), expression


def is_soon(page: Page, expression: str, *, limit_s: float) -> bool:
    """Whether an expression becomes true in that time."""
    deadline = time.monotonic() + limit_s
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            return False
        page.wait_for_timeout(50)
    return True


def choose_dark(page: Page, address: str) -> Page:
    """Choose the dark theme there, and give back a second page that opened in it.

    Now and then Chromium loses for good what a page stored, on a busy machine; the choice is made
    again then. What our pages do not store is lost every time.
    """
    for _ in range(_TRIES):
        page.goto(address)
        button = page.locator("button.theme")
        for name in ("auto", "light"):
            if button.inner_text() == f"Theme: {name}":
                button.click()
        assert button.inner_text() == "Theme: dark"
        assert page.evaluate(DARK)
        page.wait_for_timeout(_STORED_MS)
        other = page.context.new_page()
        other.goto(address)
        if is_soon(other, DARK, limit_s=5.0):
            return other
        other.close()
    pytest.fail(f"the theme was chosen {_TRIES} times and never kept")

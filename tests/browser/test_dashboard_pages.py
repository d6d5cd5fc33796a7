"""Every page of the dashboard in a real browser: served and static, themes, widths, keyboard, live."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Literal
from urllib.parse import urlencode, urlsplit

import pytest

from tests.browser.browser_page import (
    DARK,
    PHONE_WIDTH,
    Browser,
    choose_dark,
    open_browser,
    overflow,
    save_picture,
    wait_until,
)
from tests.dashboard.sample_dashboard import GPT, MATMUL, Names, comparison, write_run
from torchyard.bench.bench_run import RecordedProgress
from torchyard.core.comparison import Comparison, Failure, Verdict
from torchyard.core.events import Event
from torchyard.core.study import Workload

pytestmark = pytest.mark.browser

RESNET = Workload(suite="models", name="resnet", batch_size=8)
LSTM = Workload(suite="models", name="lstm", mode="training")
HOSTILE = "<img src=x onerror=\"document.title='evil'\">\"'</script><script>document.title='evil'</script>"
SLOWER_FROM = 20
PAGES = ("runs", "run", "workloads", "history", "compare", "live")
LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = (
    (1280, "light"),
    (1280, "dark"),
    (PHONE_WIDTH, "dark"),
    (PHONE_WIDTH, "light"),
)
ODD_PAGES = ("missing", "damaged", "evil")


def write_nightly(home: Path) -> list[str]:
    """Runs of forty nights: one workload gets slower on the way, one fails, one is evil."""
    chance, ids = Random(7), []
    for night in range(40):
        moment = datetime(2026, 3, 1, 2, 30, tzinfo=UTC) + timedelta(days=night)
        gpt = 1.12 * (0.93 if night >= SLOWER_FROM else 1.0)
        rows = [
            comparison(workload, _verdict(speedup), speedup)
            for workload, level in ((MATMUL, 1.31), (GPT, gpt), (RESNET, 1.0))
            for speedup in (level * (1 + chance.gauss(0, 0.006)),)
        ]
        rows.append(
            Comparison(
                workload=LSTM,
                baseline="eager",
                candidate="inductor",
                verdict=Verdict.FAILED,
                failure=Failure(
                    kind="crashed", phase="warm", variant="inductor", message="signal 11"
                ),
            )
        )
        run = f"{moment:%Y%m%dT%H%M%S}.000Z-{night:04x}"
        names = Names(
            study="nightly",
            revision=f"{chance.getrandbits(160):040x}",
            note="new compiler" if night == SLOWER_FROM else "",
        )
        write_run(home / run, rows=rows, names=names, started=f"{moment:%Y-%m-%dT%H:%M:%S}.000Z")
        ids.append(run)
    return ids


def _verdict(speedup: float) -> Verdict:
    return Verdict.FASTER if speedup > 1.02 else Verdict.SAME


class Served:
    """A dashboard that answers in this process, over a home of its own."""

    def __init__(self, home: Path) -> None:
        import uvicorn

        from torchyard.dashboard.app import Access, make_app
        from torchyard.dashboard.feeds import Feeds
        from torchyard.dashboard.live_store import LiveStore
        from torchyard.dashboard.server import listen

        self.home = home
        self.ids = write_nightly(home)
        self.going = write_run(home / "going", names=Names(study="a bench"), state="running")
        (home / "damaged").mkdir()
        (home / "damaged" / "run.json").write_text("no json")
        evil = Names(
            study=HOSTILE, candidate=HOSTILE, revision=HOSTILE, note=HOSTILE, workload=HOSTILE
        )
        workload = Workload(suite="file", name=HOSTILE)
        for name in ("evil-1", "evil-2"):
            rows = [comparison(workload, Verdict.FASTER, 1.5, evil)]
            write_run(home / name, rows=rows, names=evil)
        self._live_store, self._feeds = LiveStore(home), Feeds()
        self._listening = listen("127.0.0.1", 0, no_token=True)
        self._bound = self._listening.__enter__()
        self.url = self._bound.address.url
        app = make_app(self._live_store, access=Access(), feeds=self._feeds)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        sockets = [self._bound.socket]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": sockets})
        self._thread.start()

    def close(self) -> None:
        self._feeds.stop()
        self._server.should_exit = True
        self._thread.join()
        self._listening.__exit__(None, None, None)
        self._live_store.close()

    def data(self, path: str) -> dict[str, list[dict[str, str]]]:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.url).port or 0)
        connection.request("GET", f"/api/{path}")
        targets: dict[str, list[dict[str, str]]] = json.loads(connection.getresponse().read())
        connection.close()
        return targets

    def address(self, page: str) -> str:
        gpt = self.data("workloads?workload=gpt")["workloads"][0]
        history = {name: gpt[name] for name in ("workload", "baseline", "candidate", "machine")}
        paths = {
            "runs": "",
            "run": f"run?id={self.ids[-1]}",
            "workloads": "workloads",
            "history": f"history?{urlencode(history)}",
            "compare": f"compare?before={self.ids[0]}&after={self.ids[-1]}",
            "live": "live",
            "missing": "run?id=nobody",
            "damaged": "run?id=damaged",
            "evil": "compare?before=evil-1&after=evil-2",
        }
        return self.url + paths[page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("dashboard") / "runs")
    yield found
    found.close()


@pytest.fixture(scope="module")
def site(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from torchyard.dashboard.live_store import LiveStore
    from torchyard.dashboard.site import write_site

    live_store = LiveStore(served.home)
    folder = write_site(live_store, tmp_path_factory.mktemp("site") / "site").folder
    live_store.close()
    return folder


@pytest.mark.parametrize("page", [*PAGES, *ODD_PAGES])
def test_every_page_in_both_themes_and_widths(browser: Browser, served: Served, page: str) -> None:
    """Open for all looks: a reader turns the phone, and the system changes its theme at night."""
    expected = ("404 (Not Found)",) if page == "missing" else ()
    with browser.page(expected=expected) as (seen, watched):
        seen.goto(served.address(page))
        assert seen.locator("nav.site .brand").inner_text() == "Torchyard"
        assert seen.locator("h1").count() == 1
        assert "evil" not in seen.title()
        for width, theme in LOOKS:
            seen.set_viewport_size({"width": width, "height": 900})
            seen.emulate_media(color_scheme=theme, reduced_motion="reduce")
            colour = seen.evaluate("getComputedStyle(document.body).backgroundColor")
            assert colour == ("rgb(21, 24, 27)" if theme == "dark" else "rgb(253, 253, 252)")
            assert overflow(seen) <= 0, (width, theme)
            if page != "live":
                save_picture(seen, f"dashboard-{page}-{width}-{theme}", whole=page != "run")
        assert all(request.startswith((served.url, "data:")) for request in watched.requests)


def test_runs_are_filtered_sorted_and_paged(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.url)
        rows = page.locator("#runs tbody tr")
        assert rows.count() == 44
        page.fill("[name=study]", "night")
        page.press("[name=study]", "Enter")
        page.wait_for_url("**study=night**")
        assert rows.count() == 40
        page.get_by_role("link", name="Started (UTC)").click()
        page.wait_for_url("**order=rising**")
        assert "2026-03-01" in rows.first.inner_text()
        assert page.input_value("[name=study]") == "night"
        page.fill("[name=since]", "2026-04-01")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**since=2026-04-01**")
        assert "2026-04-01" in rows.first.inner_text()
        page.get_by_role("link", name="Clear").click()
        page.wait_for_url(served.url)
        assert rows.count() == 44


def test_workloads_sort_in_the_page_and_lead_to_histories(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.address("workloads"))
        heading = page.locator("th", has=page.locator("[data-sort=speedup]"))
        first = page.locator("#workloads tbody tr").first
        page.click("[data-sort=speedup]")
        assert heading.get_attribute("aria-sort") == "ascending"
        assert "resnet" in first.inner_text()
        page.click("[data-sort=speedup]")
        assert heading.get_attribute("aria-sort") == "descending"
        # What has no number is last either way.
        assert "lstm" in page.locator("#workloads tbody tr").last.inner_text()
        page.get_by_role("link", name=GPT.label).click()
        page.get_by_role("heading", name=GPT.label).wait_for()


def test_a_history_shows_the_change_and_its_note(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.address("history"))
        changes = page.locator("#changes-table tbody tr")
        assert changes.count() == 1
        assert "2026-03-20" in changes.inner_text()
        assert "2026-03-21" in changes.inner_text()
        assert "▼ worse" in changes.inner_text()
        assert page.get_by_text("new compiler").first.is_visible()
        page.locator(".lazy-chart[data-state=drawn] svg").wait_for()
        save_picture(page, "dashboard-history-chart")
        page.get_by_role("link", name="Peak memory").click()
        page.wait_for_url("**metric=memory")
        assert page.locator("#history tbody tr").count() == 40


def test_two_runs_are_chosen_and_compared(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.url + "compare")
        page.select_option("[name=before]", served.ids[0])
        page.select_option("[name=after]", served.ids[-1])
        page.get_by_role("button", name="Compare").click()
        page.locator("table.sorted").wait_for()
        row = page.locator("table.sorted tbody tr", has_text=GPT.label)
        assert "slower" in row.inner_text()
        page.click("table.sorted [data-sort=ratio]")
        assert GPT.label in page.locator("table.sorted tbody tr").first.inner_text()


def test_a_run_leads_to_the_one_before_and_asks_for_charts_only_when_seen(
    browser: Browser, served: Served
) -> None:
    with browser.page() as (page, watched):
        page.goto(served.address("run"))
        page.get_by_role("link", name="Compare with the previous run").click()
        page.get_by_role("heading", name="Compare two runs").wait_for()
        assert not [request for request in watched.requests if "vega" in request]


def test_names_are_escaped(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        for address in ("", "workloads", "run?id=evil-1", "compare?before=evil-1&after=evil-2"):
            page.goto(served.url + address)
            assert page.title() != "evil"
            assert page.locator("img").count() == 0
            assert "<img src=x" in page.inner_text("body")


def test_everything_is_reached_by_keyboard(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.address("workloads"))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        seen = []
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert {"Torchyard", "Runs", "Live", "Theme: auto", "Show", "Workload"} <= set(seen)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"


def test_the_theme_is_one_for_all_pages(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        other = choose_dark(page, served.url)
        for address in ("workloads", "run"):
            other.goto(served.address(address))
            wait_until(other, DARK)


def test_pages_print_without_what_only_a_screen_needs(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.address("workloads"))
        page.emulate_media(media="print")
        for part in ("nav.site", "form.choose", "button.theme"):
            assert not page.locator(part).is_visible()
        assert page.locator("#workloads").is_visible()


def test_without_scripts_the_pages_still_say_everything(browser: Browser, served: Served) -> None:
    with browser.page(scripts=False) as (page, _):
        page.goto(served.url + "?verdict=failed")
        assert page.locator("#runs tbody tr").count() == 40
        page.goto(served.address("live"))
        assert page.get_by_text("Live progress needs JavaScript").is_visible()


def test_live_progress_as_it_happens(browser: Browser, served: Served) -> None:
    progress = RecordedProgress(served.going, lambda _: None)
    with browser.page() as (page, _):
        page.goto(served.address("live"))
        card = page.locator("article.live")
        progress.listen(Event(kind="workload", text="1 of 2", workload=MATMUL.label, fraction=0.25))
        page.get_by_text("25%").wait_for()
        assert f"{MATMUL.label}: 1 of 2" in card.inner_text()
        made = comparison(MATMUL, Verdict.FASTER, 1.25)
        progress.listen(
            Event(
                kind="comparison",
                text="x",
                workload=HOSTILE,
                fraction=0.5,
                comparison=made,
            )
        )
        page.locator(".made li").wait_for()
        assert "▲ faster" in card.inner_text()
        assert "1.250x" in card.inner_text()
        assert "<img" in card.inner_text()
        assert page.title() != "evil"
        save_picture(page, "dashboard-live-1280-light")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": PHONE_WIDTH, "height": 800})
        assert overflow(page) <= 0
        save_picture(page, f"dashboard-live-{PHONE_WIDTH}-dark")
        progress.close()
        facts = served.going / "run.json"
        facts.write_text(facts.read_text().replace('"running"', '"finished"'))
        page.get_by_text("The run has finished.").wait_for()
        assert card.locator(".state").inner_text() == "finished"
        assert card.locator("progress").evaluate("bar => bar.value") == 1


def test_a_bench_that_starts_appears_by_itself(browser: Browser, served: Served) -> None:
    with browser.page() as (page, _):
        page.goto(served.address("live"))
        before = page.locator("article.live").count()
        folder = write_run(served.home / "late", names=Names(study="late"), state="running")
        page.get_by_role("link", name="late").wait_for()
        assert page.locator("article.live").count() == before + 1
        facts = folder / "run.json"
        facts.write_text(facts.read_text().replace('"running"', '"interrupted"'))
        page.get_by_text("The run is interrupted.").wait_for()


@pytest.mark.parametrize("dark", [False, True])
def test_the_site_works_from_files(browser: Browser, site: Path, dark: bool) -> None:
    with browser.page(dark=dark, width=PHONE_WIDTH if dark else 1280) as (page, watched):
        page.goto((site / "index.html").as_uri())
        rows = page.locator("#runs tbody tr:not([hidden])")
        everything = rows.count()
        assert everything >= 44
        page.fill("[data-filter=runs]", "nightly 2026-03-2")
        assert rows.count() == 10
        assert page.locator("[data-shown=runs]").inner_text() == f"10 of {everything} shown"
        if not dark:
            page.click("[data-sort=started]")
            assert "2026-03-20" in rows.first.inner_text()
        rows.first.locator("a").first.click()
        page.get_by_role("heading", name="nightly").wait_for()
        page.get_by_role("link", name="Workloads").click()
        page.get_by_role("link", name=GPT.label).click()
        page.locator("#changes-table tbody tr").wait_for()
        page.locator(".lazy-chart[data-state=drawn] svg").wait_for()
        page.get_by_role("link", name="Compile time").click()
        page.get_by_text("12.5 s").first.wait_for()
        assert page.locator("#history tbody tr").count() == 40
        page.get_by_role("link", name="Compare", exact=True).click()
        page.locator("#pairs a").first.click()
        page.locator("table.sorted").wait_for()
        assert overflow(page) <= 0
        assert all(re.match(r"file:|data:", request) for request in watched.requests)
        save_picture(page, f"site-compare-{'dark' if dark else 'light'}")

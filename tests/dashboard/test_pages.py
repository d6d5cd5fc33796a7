"""Every page and its data: content, order, and empty states."""

from __future__ import annotations

import html
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dashboard.sample_dashboard import (
    GPT,
    MATMUL,
    DashboardClient,
    Names,
    comparison,
    open_client,
    write_results_directory,
    write_run,
)
from torchyard.core.comparison import Comparison, Failure, Verdict
from torchyard.dashboard.pages import asset_kinds
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter

SERIES = {
    "workload": MATMUL.label,
    "baseline": "eager",
    "candidate": "inductor",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def started(page: str) -> list[str]:
    """Days of the rows of a table, in order."""
    return re.findall(r'<time datetime="(\d{4}-\d\d-\d\d)', page)


def machine_of(seen: DashboardClient) -> str:
    runs = seen.data("/api/runs")["runs"]
    assert isinstance(runs, list)
    return str(runs[0]["machine"])


def history_address(seen: DashboardClient, path: str = "/history", **changes: str) -> str:
    return f"{path}?{urlencode({**SERIES, 'machine': machine_of(seen), **changes})}"


def test_runs_are_newest_first_with_distinguishing_fields(home: Path) -> None:
    write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page("/")
        assert started(page) == ["2025-01-03", "2025-01-02", "2025-01-01"]
        for text in ("eager against inductor", "3 runs", "note 2", "2.9.0", "example-9000-2c"):
            assert text in page
        assert 'title="1 slower"' in page
        assert str(home) not in page
        data = dashboard.data("/api/runs")
        assert data["schema"] == 1
        assert data["total"] == 3
        runs = data["runs"]
        assert isinstance(runs, list)
        assert [run["id"][-4:] for run in runs] == ["0002", "0001", "0000"]
        assert runs[1]["verdicts"] == {"slower": 1, "same": 1}
        assert "folder" not in runs[0]


@pytest.mark.parametrize(
    ("query", "days"),
    [
        ("study=inductor", [3, 2, 1]),
        ("study=eager*", [3, 2, 1]),
        ("study=nothing", []),
        ("workload=matmul", [3, 2, 1]),
        ("workload=models/*", [3, 2, 1]),
        ("workload=unet", []),
        ("candidate=induct", [3, 2, 1]),
        ("verdict=slower", [2]),
        ("verdict=failed", []),
        ("since=2025-01-02", [3, 2]),
        ("until=2025-01-02", [2, 1]),
        ("since=2025-01-02&until=2025-01-02", [2]),
        ("since=2025-01-02T00:00:00%2B01:00", [3, 2]),
        ("machine=example", [3, 2, 1]),
        ("machine=other", []),
        ("revision=" + "0" * 39 + "2", [3]),
        ("order=rising", [1, 2, 3]),
        ("sort=revision", [3, 2, 1]),
        ("sort=revision&order=rising", [1, 2, 3]),
        ("sort=slower", [2, 3, 1]),
        ("study=&verdict=&since=&sort=&order=&page=", [3, 2, 1]),
    ],
)
def test_filters_and_orders(home: Path, query: str, days: list[int]) -> None:
    write_results_directory(home)
    with open_client(home) as dashboard:
        assert [int(day[-2:]) for day in started(dashboard.page(f"/?{query}"))] == days
        assert dashboard.data(f"/api/runs?{query}")["total"] == len(days)


def test_a_filter_stays_in_the_form_and_in_the_links(home: Path) -> None:
    write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page("/?study=eager&verdict=slower&sort=torch")
        assert 'name="study" value="eager"' in page
        assert "<option selected>slower</option>" in page
        assert 'href="./?study=eager&amp;verdict=slower&amp;sort=machine"' in page
        assert "1 run (filtered)" in page


def test_pages_of_a_long_list(home: Path) -> None:
    for number in range(53):
        day, hour = divmod(number, 24)
        write_run(
            home / f"run-{number:03d}", started=f"2025-01-{day + 1:02d}T{hour:02d}:00:00.000Z"
        )
    with open_client(home) as dashboard:
        first, second = dashboard.page("/"), dashboard.page("/?page=2")
        assert (len(started(first)), len(started(second))) == (50, 3)
        assert "1 to 50 of 53 runs" in first
        assert 'rel="next" href="./?page=2"' in first
        assert 'rel="prev" href="./"' in second
        # A page behind the last one is the last one.
        assert started(dashboard.page("/?page=99")) == started(second)
        assert dashboard.data("/api/runs?page=2")["pages"] == 2


def test_an_empty_and_a_missing_results_directory(home: Path) -> None:
    with open_client(home) as dashboard:
        assert "There is no run yet" in dashboard.page("/")
        assert "No workload has been measured yet" in dashboard.page("/workloads")
        assert "Nothing is running" in dashboard.page("/live")
        assert "choose a run" in dashboard.page("/compare")
        assert dashboard.data("/api/workloads")["workloads"] == []


def test_a_run_that_comes_while_the_dashboard_is_open(home: Path) -> None:
    write_results_directory(home, count=1)
    with open_client(home) as dashboard:
        assert dashboard.data("/api/runs")["total"] == 1
        write_run(home / "new", started="2026-01-01T00:00:00.000Z")
        dashboard.live_store._fresh_until_s = 0.0
        assert started(dashboard.page("/"))[0] == "2026-01-01"


def test_one_run_is_the_report(home: Path) -> None:
    ids = write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page(f"/run?id={ids[0]}")
        assert "<h1>eager against inductor</h1>" in page
        assert MATMUL.label in page
        data = dashboard.data(f"/api/run?id={ids[0]}")
        assert data["schema"] == "torchyard.run-report"


def test_a_run_page_follows_its_run(home: Path) -> None:
    folder = write_run(
        home / "going", rows=[comparison(MATMUL, Verdict.SAME, 1.0)], state="running"
    )
    with open_client(home) as dashboard:
        assert "in progress" in dashboard.page("/run?id=going")
        text = (folder / "run.json").read_text()
        (folder / "run.json").write_text(text.replace('"running"', '"finished"'))
        dashboard.live_store._fresh_until_s = 0.0
        assert "in progress" not in dashboard.page("/run?id=going")


@pytest.mark.parametrize(
    "damage",
    ["not json", "{}", '{"format": 99, "torchyard": "9.0"}', '{"format": 1, "state": "x"}'],
)
def test_a_damaged_run_has_a_page_that_says_so(home: Path, damage: str) -> None:
    ids = write_results_directory(home, count=2)
    (home / ids[0] / "run.json").write_text(damage)
    with open_client(home) as dashboard:
        assert "damaged" in dashboard.page("/")
        page = dashboard.page(f"/run?id={ids[0]}")
        assert "Unreadable run" in page
        assert 'role="alert"' in page
        assert ids[0] in page
        run = dashboard.data(f"/api/run?id={ids[0]}")["run"]
        assert isinstance(run, dict)
        assert run["damage"]
        assert "<h1>eager against inductor</h1>" in dashboard.page(f"/run?id={ids[1]}")
        compare = dashboard.page(f"/compare?before={ids[0]}&after={ids[1]}")
        assert 'role="alert"' in compare


def test_a_record_that_is_damaged_in_the_middle(home: Path) -> None:
    ids = write_results_directory(home, count=1)
    path = home / ids[0] / "comparisons.jsonl"
    path.write_bytes(b"broken\n" + path.read_bytes())
    with open_client(home) as dashboard:
        assert "Unreadable run" in dashboard.page(f"/run?id={ids[0]}")


def test_workloads_with_their_latest_verdict_and_a_line(home: Path) -> None:
    write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page("/workloads")
        rows = re.findall(r'<th scope="row" data-key="workload" data-value="([^"]+)"', page)
        assert rows == [MATMUL.label, GPT.label]
        assert "inductor vs eager" in page
        assert "1.270x" in page
        assert page.count('<svg class="spark') == 2
        assert "3 runs" in page
        assert dashboard.data("/api/workloads?workload=gpt")["total"] == 1
        assert dashboard.data("/api/workloads?candidate=other")["total"] == 0


def test_a_workload_that_only_ever_failed_is_in_the_list(home: Path) -> None:
    failed = Comparison(
        workload=GPT,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.FAILED,
        failure=Failure(kind="crashed", phase="warm", variant="inductor", message="signal 11"),
    )
    write_run(home / "run", rows=[failed])
    with open_client(home) as dashboard:
        assert "failed" in dashboard.page("/workloads")
        page = dashboard.page(history_address(dashboard, workload=GPT.label))
        assert "No run has a valid number" in page


def test_a_history_has_every_run_with_notes_and_links(home: Path) -> None:
    ids = write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page(history_address(dashboard))
        assert started(page) == ["2025-01-03", "2025-01-02", "2025-01-01"]
        for text in ("note 1", "0.900x", "[0.891x, 0.909x]", "000000000000"):
            assert text in page
        assert f'href="compare?before={ids[1]}&amp;after={ids[2]}"' in page
        data = dashboard.data(history_address(dashboard, "/api/history"))
        points = data["points"]
        assert isinstance(points, list)
        assert [point["run"] for point in points] == ids


@pytest.mark.parametrize(
    ("metric", "text"), [("time", "800 µs"), ("compile", "12.5 s"), ("memory", "256 MiB")]
)
def test_other_metrics_have_histories(home: Path, metric: str, text: str) -> None:
    write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page(history_address(dashboard, metric=metric))
        assert text in page
        assert 'aria-current="page"' in page


def test_two_runs_compared(home: Path) -> None:
    ids = write_results_directory(home)
    with open_client(home) as dashboard:
        page = dashboard.page(f"/compare?before={ids[0]}&after={ids[1]}")
        assert MATMUL.label in page
        assert "0.720x" in page
        assert "common baseline" in page
        assert f'<option value="{ids[0]}" selected>' in page
        data = dashboard.data(f"/api/compare?before={ids[0]}&after={ids[1]}")
        made = data["comparison"]
        assert isinstance(made, dict)
        assert {row["workload"] for row in made["rows"]} == {MATMUL.label, GPT.label}


def test_runs_that_cannot_be_compared_say_why(home: Path) -> None:
    ids = write_results_directory(home, count=1)
    write_run(
        home / "other",
        rows=[comparison(MATMUL, Verdict.SAME, 1.0, Names(candidate="amp"))],
        names=Names(candidate="amp"),
    )
    with open_client(home) as dashboard:
        page = dashboard.page(f"/compare?before={ids[0]}&after={ids[0]}")
        assert "are the same run" in page
        page = dashboard.page(f"/compare?before={ids[0]}&after={ids[0]}&before_variant=nobody")
        assert "has no variant" in page
        data = dashboard.data(f"/api/compare?before={ids[0]}&after={ids[0]}")
        assert data["comparison"] is None
        assert dashboard.page(f"/compare?before={ids[0]}&after=other")


def test_live_lists_only_running_benchmarks(home: Path) -> None:
    write_results_directory(home, count=1)
    write_run(home / "going", state="running")
    with open_client(home) as dashboard:
        page = dashboard.page("/live")
        assert "1 benchmark is running" in page
        assert 'data-events="events?id=going"' in page
        runs = dashboard.data("/api/live")["runs"]
        assert isinstance(runs, list)
        assert [run["id"] for run in runs] == ["going"]


def test_assets_may_be_kept_for_good(home: Path) -> None:
    with open_client(home) as dashboard:
        page = dashboard.page("/")
        for name, kind in asset_kinds().items():
            if name.startswith("vega"):
                continue
            answer = dashboard.client.get(f"/assets/{name}")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "immutable" in answer.headers["cache-control"]
            assert (f"assets/{name}" in page) == name.startswith(("dashboard", "theme"))
        assert dashboard.client.get("/assets/report.css").status_code == 404


def test_every_link_of_every_page_leads_somewhere(home: Path) -> None:
    write_results_directory(home)
    write_run(home / "a b&c=d?e#f", rows=[comparison(GPT, Verdict.FASTER, 1.5)])
    with open_client(home) as dashboard:
        todo, visited = ["./"], set()
        while todo:
            address = todo.pop()
            visited.add(address)
            answer = dashboard.client.get(address.removeprefix("./") or "/")
            assert answer.status_code == 200, address
            if "api/" in address or "assets/" in address or "events" in address:
                continue
            for found in re.findall(r'href="([^"#][^"]*)"', answer.text):
                link = html.unescape(found)
                if link not in visited and not link.startswith("data:"):
                    todo.append(link)
        assert len(visited) > 20


def test_behind_a_proxy_that_serves_it_below_a_path(home: Path) -> None:
    """Every link is relative: the dashboard need not know where it is."""
    from urllib.parse import urljoin

    write_results_directory(home)
    with open_client(home) as dashboard:
        todo, visited = ["http://127.0.0.1:8000/bench/"], set()
        while todo:
            address = todo.pop()
            visited.add(address)
            assert address.startswith("http://127.0.0.1:8000/bench/")
            # What a proxy does with `proxy_pass http://127.0.0.1:8000/` below `/bench/`.
            answer = dashboard.client.get(address.replace("/bench/", "/", 1))
            assert answer.status_code == 200, address
            if answer.headers["content-type"].startswith("text/html"):
                for found in re.findall(r'(?:href|src|data-address)="([^"#]+)"', answer.text):
                    link = urljoin(address, html.unescape(found))
                    if link not in visited and "data:" not in link and "vega" not in link:
                        todo.append(link)
        assert len(visited) > 20


def test_a_run_is_found_while_the_index_is_rebuilt(tmp_path: Path) -> None:
    """Another process empties the index, and a run is new: both exist, so neither is missing."""
    ids = write_results_directory(tmp_path, count=3)
    with open_client(tmp_path) as dashboard:
        assert dashboard.live_store.store.place is not None
        for number in range(3):
            new = f"new-{number}"
            write_run(tmp_path / new)
            with closing(sqlite3.connect(dashboard.live_store.store.place)) as other, other:
                other.execute("DELETE FROM runs")
            for run in (*ids, new):
                assert run in dashboard.page(f"/run?id={run}")
                dashboard.data(f"/api/run?id={run}")
            dashboard.page("/run?id=no-such-run", 404)
            dashboard.page("/run?id=..", 404)
            dashboard.page(f"/run?id={new}%2F..%2F{new}", 404)


def test_reindexing_never_hides_a_run_from_others(tmp_path: Path) -> None:
    ids = set(write_results_directory(tmp_path, count=30))
    with Store.open(tmp_path) as reader, Store.open(tmp_path) as writer:
        reader.refresh()
        seen: list[set[str]] = []

        def look(_done: int, _total: int) -> None:
            seen.append({run.id for run in reader.runs(RunFilter())})

        for _ in range(3):
            assert writer.rebuild(look).changed == len(ids)
            look(0, 0)
        assert seen
        assert all(found == ids for found in seen)

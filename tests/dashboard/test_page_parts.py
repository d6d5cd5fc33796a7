"""Parts of the pages: sparklines, pagination, addresses, queries."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.sample_dashboard import (
    GPT,
    MATMUL,
    Names,
    comparison,
    open_client,
    write_run,
)
from tests.presentation.page_outline import page_outline
from torchyard.bench.report.suite_summary import suite_means
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Workload
from torchyard.dashboard.links import (
    Address,
    Links,
    SiteLinks,
    compare_request,
    history_request,
    run_request,
    runs_request,
    workloads_request,
)
from torchyard.dashboard.lists import HEIGHT, WIDTH, page_of, sparkline
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.overview import Overview, mean_speedup, read_overview, suites_spec
from torchyard.dashboard.server import Address as ServedAt
from torchyard.errors import UsageError
from torchyard.results.model import METRICS, RunFilter, Series

# What a URL can carry: no halves of characters, and not more than a query may have.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def query_of(address: str) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(address).query, keep_blank_values=True, separator="&")


@given(st.lists(st.floats(min_value=1e-9, max_value=1e9), max_size=200))
def test_a_line_stays_in_its_box(speedups: list[float]) -> None:
    line = sparkline(speedups, tone="faster")
    points = [tuple(map(float, point.split(","))) for point in line.points.split()]
    assert len(points) == min(60, len(speedups))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    if points:
        assert line.last == pytest.approx(points[-1], abs=0.11)
        assert line.one is None or 0 <= line.one <= HEIGHT


def test_higher_is_faster_and_noise_stays_flat() -> None:
    rising = [float(point.split(",")[1]) for point in sparkline([1.0, 2.0, 4.0]).points.split()]
    assert rising == sorted(rising, reverse=True)
    noise = [float(point.split(",")[1]) for point in sparkline([1.0, 1.001, 0.999]).points.split()]
    assert max(noise) - min(noise) < HEIGHT / 4
    assert sparkline([1.3, 1.5]).one is None
    assert sparkline([0.9, 1.1]).one is not None


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_speedup_is_left_out(odd: float) -> None:
    assert sparkline([odd]).points == ""
    assert sparkline([1.0, odd, 2.0]) == sparkline([1.0, 2.0])


@given(st.integers(0, 500), st.integers(1, 50), st.integers(1, 1000))
def test_pages_hold_everything_once(count: int, size: int, beyond: int) -> None:
    items = list(range(count))
    _, first = page_of(items, 1, size=size)
    found = [
        item for page in range(1, first.pages + 1) for item in page_of(items, page, size=size)[0]
    ]
    assert found == items
    shown, paging = page_of(items, first.pages + beyond, size=size)
    assert paging.page == first.pages
    assert list(shown) == items[(first.pages - 1) * size :]
    assert paging.last - paging.first + 1 == len(shown) or not shown


@given(names, names, names, names, st.sampled_from(METRICS))
def test_an_address_of_a_history_leads_back_to_it(
    workload: str, baseline: str, candidate: str, machine: str, metric: str
) -> None:
    texts = [text[:100] for text in (workload, baseline, candidate, machine)]
    series = Series(
        workload=texts[0],
        baseline=texts[1],
        candidate=texts[2],
        machine=texts[3],
        metric=next(one for one in METRICS if one == metric),
    )
    assert history_request(query_of(Links().history(series))) == series


@given(names, names)
def test_addresses_of_runs_lead_back_to_them(before: str, after: str) -> None:
    one, other = before[:400], after[:400]
    assert run_request(query_of(Links().run(one))) == one
    request = compare_request(query_of(Links().compare(one, other)))
    assert (request.before, request.after) == (one, other)
    assert compare_request(request.query) == request


@given(names, st.sampled_from(list(Verdict)), st.booleans(), st.integers(1, 99))
def test_a_list_of_runs_leads_back_to_itself(
    text: str, verdict: Verdict, falling: bool, page: int
) -> None:
    query = [("study", text[:400]), ("verdict", verdict.value), ("page", str(page))]
    query += [] if falling else [("order", "rising")]
    request = runs_request(query)
    assert runs_request(query_of(Links().runs(request.query()))) == request
    assert runs_request(request.query(page="")).page == 1
    listed = workloads_request([("workload", text[:400]), ("page", str(page))])
    assert workloads_request(query_of(Links().workloads(listed.query()))) == listed


@pytest.mark.parametrize(
    ("typed", "pattern"),
    [("gpt", "*gpt*"), ("models/*", "models/*"), ("gp?", "gp?"), (" a ", "*a*")],
)
def test_a_text_without_a_wildcard_is_searched_anywhere(typed: str, pattern: str) -> None:
    assert runs_request([("workload", typed)]).filters.workload == pattern


@pytest.mark.parametrize(
    ("since", "until", "wanted"),
    [
        ("2025-01-31", "2025-01-31", ("2025-01-31T00:00:00.000Z", "2025-02-01T00:00:00.000Z")),
        ("2025-01-31T12:00", "", ("2025-01-31T12:00:00.000Z", "")),
        ("2025-01-31T12:00+02:00", "", ("2025-01-31T10:00:00.000Z", "")),
        ("", "9999-12-31", ("", "9999-12-31T00:00:00.000Z")),
    ],
)
def test_days_are_whole_days(since: str, until: str, wanted: tuple[str, str]) -> None:
    filters = runs_request([("since", since), ("until", until)]).filters
    assert (filters.since, filters.until) == wanted


@given(st.text(max_size=20))
def test_any_page_number_is_a_page_or_an_error(text: str) -> None:
    try:
        assert runs_request([("page", text)]).page >= 1
    except UsageError as error:
        assert error.hint  # noqa: PT017


def test_addresses_of_files_go_up_as_deep_as_the_page_lies() -> None:
    series = Series(workload="w", baseline="b", candidate="c", machine="m")
    for links, up in ((SiteLinks(0), ""), (SiteLinks(1), "../")):
        addresses = (links.runs(), links.run("x"), links.history(series), links.compare("a", "b"))
        assert all(address.startswith(up) for address in (*addresses, links.asset("x.js")))
        assert all(isinstance(address, Address) for address in addresses)
    assert SiteLinks().runs([("page", "2")]) == "runs-2.html"
    assert SiteLinks().live() == ""


@pytest.mark.parametrize(
    ("host", "new", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:80/"),
        ("::1", False, "http://[::1]:80/"),
        ("yard", True, "http://yard:80/?token=secret"),
    ],
)
def test_where_it_is_served(host: str, new: bool, url: str) -> None:
    assert ServedAt(host=host, port=80, token="secret", token_is_new=new).url == url  # noqa: S106


SOFTMAX = Workload(suite="kernels", name="softmax")
NOISY = ("noisy machine: 9 of 9 pairs were disturbed",)


def write_day(
    home: Path, day: int, rows: Sequence[Comparison], *, study: str = "nightly", revision: str = ""
) -> None:
    write_run(
        home / f"202501{day:02d}T000000.000Z-{day:04x}",
        rows=rows,
        names=Names(study=study, revision=revision or f"{day:040x}"),
        started=f"2025-01-{day:02d}T00:00:00.000Z",
    )


def overview_of(home: Path) -> Overview:
    live_store = LiveStore(home)
    try:
        return read_overview(live_store)
    finally:
        live_store.close()


def test_a_regression_is_one_even_if_the_candidate_is_still_faster(tmp_path: Path) -> None:
    write_day(tmp_path, 1, [comparison(MATMUL, Verdict.FASTER, 1.50)])
    write_day(tmp_path, 2, [comparison(MATMUL, Verdict.FASTER, 1.32)])
    (row,) = overview_of(tmp_path).regressions
    assert row["size"] == "-12.0%"
    assert row["levels"] == ["1.500x", "1.320x"]
    assert not row["confirmed"]
    assert "not confirmed" in row["evidence"]
    with open_client(tmp_path) as dashboard:
        home = page_outline(dashboard.page("/"))
        workloads = page_outline(dashboard.page("/workloads"))
        (record,) = dashboard.client.get("/api/runs").json()["regressions"]
        assert "regressions" not in dashboard.client.get("/api/runs?study=x").json()
    assert record["series"]["workload"] == MATMUL.label
    assert record["levels"] == ["1.500x", "1.320x"]
    assert home.index("Regressions") < home.index("All runs")
    assert "▽ -12.0%" in home
    assert "▽ -12.0%" in workloads


def test_a_step_that_the_history_confirms(tmp_path: Path) -> None:
    noise = [1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.996, 1.003]
    for day, factor in enumerate([*noise, *noise], start=1):
        speedup = (1.5 if day <= len(noise) else 1.32) * factor
        write_day(tmp_path, day, [comparison(MATMUL, Verdict.FASTER, speedup)])
    (row,) = overview_of(tmp_path).regressions
    assert row["confirmed"]
    assert "step on 2025-01-09" in row["evidence"]
    before, after = (float(text.removesuffix("x")) for text in row["levels"])
    assert after / before == pytest.approx(row["ratio"], rel=1e-3)
    assert row["ratio"] == pytest.approx(0.88, rel=0.01)


@pytest.mark.parametrize(
    "newest",
    [
        comparison(MATMUL, Verdict.FASTER, 1.499),
        replace(comparison(MATMUL, Verdict.FASTER, 1.1), untrusted=NOISY),
        comparison(MATMUL, Verdict.WRONG, 1.1),
        comparison(MATMUL, Verdict.FASTER, 1.8),
    ],
    ids=["same", "untrusted", "wrong", "better"],
)
def test_what_is_no_regression(tmp_path: Path, newest: Comparison) -> None:
    write_day(tmp_path, 1, [comparison(MATMUL, Verdict.FASTER, 1.5)])
    write_day(tmp_path, 2, [newest])
    assert overview_of(tmp_path).regressions == ()


def test_untrusted_runs_do_not_show_that_nothing_regressed(tmp_path: Path) -> None:
    for day in (1, 2):
        untrusted = replace(comparison(MATMUL, Verdict.FASTER, 1.5), untrusted=NOISY)
        write_day(tmp_path, day, [untrusted, comparison(GPT, Verdict.FASTER, 1.2)][: 3 - day])
    assert overview_of(tmp_path).assessed == 0
    with open_client(tmp_path) as dashboard:
        page = page_outline(dashboard.page("/"))
    assert "none of the 2 series has two trusted runs" in page
    assert "No speedup fell" not in page


def test_the_mean_of_a_suite_is_over_the_same_workloads_in_every_run(tmp_path: Path) -> None:
    both = [comparison(MATMUL, Verdict.FASTER, 2.0), comparison(SOFTMAX, Verdict.FASTER, 1.125)]
    write_day(tmp_path, 1, both)
    write_day(tmp_path, 2, both[:1])  # not comparable with the newest run
    slower = comparison(SOFTMAX, Verdict.FASTER, 0.5)
    write_day(tmp_path, 3, [both[0], slower, comparison(GPT, Verdict.FASTER, 9.0)])
    (line,) = overview_of(tmp_path).suites
    assert (line.suite, line.workloads) == ("kernels", 2)
    assert [mean for _, mean in line.points] == pytest.approx([1.5, 1.0])
    assert line.change == "-33.3%"


@pytest.mark.parametrize(("revision", "title"), [("", "revision"), ("same", "date")])
def test_the_axis_has_revisions_or_dates(tmp_path: Path, revision: str, title: str) -> None:
    for day in (1, 2):
        row = comparison(MATMUL, Verdict.FASTER, 1.5)
        write_day(tmp_path, day, [row], revision=revision)
    spec = suites_spec(overview_of(tmp_path).suites)
    assert spec["encoding"]["x"]["title"] == f"{title}, oldest first"
    names = spec["params"][0]["value"]
    assert names["1"] == ("2025-01-02" if revision else f"{2:040x}"[:10])


def test_an_unnamed_run_is_named_by_workload_and_speedup(tmp_path: Path) -> None:
    untrusted = replace(comparison(SOFTMAX, Verdict.FASTER, 1.9), untrusted=NOISY)
    several = [comparison(MATMUL, Verdict.FASTER, 2.0), comparison(GPT, Verdict.FASTER, 1.125)]
    write_day(tmp_path, 1, [comparison(GPT, Verdict.FASTER, 1.31)], study="bench")
    write_day(tmp_path, 2, [untrusted], study="bench")
    write_day(tmp_path, 3, several, study="bench")
    with open_client(tmp_path) as dashboard:
        page = page_outline(dashboard.page("/"))
    assert re.search(r"models/gpt inference: inductor vs eager \| 1\.310x \|", page)
    assert re.search(r"softmax inference: inductor vs eager \| \(1\.900x\) \| ! ?1 untrusted", page)
    assert re.search(r"2 workloads: inductor vs eager \| 1\.500x mean of 2 \|", page)


def test_the_mean_of_a_run_is_that_of_its_report(tmp_path: Path) -> None:
    rows = [
        comparison(MATMUL, Verdict.FASTER, 2.0),
        comparison(SOFTMAX, Verdict.WRONG, 7.0),
        replace(comparison(GPT, Verdict.FASTER, 5.0), untrusted=NOISY),
        comparison(replace(GPT, mode="training"), Verdict.SLOWER, 0.8),
    ]
    write_day(tmp_path, 1, rows)
    live_store = LiveStore(tmp_path)
    mean = mean_speedup(live_store.comparisons(RunFilter()))
    live_store.close()
    assert mean is not None
    assert mean[0] == pytest.approx(suite_means(rows)[0].speedup)
    assert mean[0] == pytest.approx(math.sqrt(1.6))
    assert mean[1] == 2


def test_untrusted_runs_are_marked_where_two_are_compared(tmp_path: Path) -> None:
    untrusted = replace(comparison(MATMUL, Verdict.FASTER, 1.9), untrusted=NOISY)
    write_day(tmp_path, 1, [untrusted])
    write_day(tmp_path, 2, [comparison(MATMUL, Verdict.FASTER, 1.9)])
    with open_client(tmp_path) as dashboard:
        choice = page_outline(dashboard.page("/compare"))
    assert choice.count("1 untrusted") == 2  # one option in each of the two lists

"""Parts of the pages: sparklines, pagination, addresses, queries."""

from __future__ import annotations

import math
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.comparison import Verdict
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
from torchyard.dashboard.server import Address as ServedAt
from torchyard.errors import UsageError
from torchyard.results.model import METRICS, Series

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
    wanted = compare_request(query_of(Links().compare(one, other)))
    assert (wanted.before, wanted.after) == (one, other)
    assert compare_request(wanted.query) == wanted


@given(names, st.sampled_from(list(Verdict)), st.booleans(), st.integers(1, 99))
def test_a_list_of_runs_leads_back_to_itself(
    text: str, verdict: Verdict, falling: bool, page: int
) -> None:
    query = [("study", text[:400]), ("verdict", verdict.value), ("page", str(page))]
    query += [] if falling else [("order", "rising")]
    wanted = runs_request(query)
    assert runs_request(query_of(Links().runs(wanted.query()))) == wanted
    assert runs_request(wanted.query(page="")).page == 1
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
    found = runs_request([("since", since), ("until", until)]).filters
    assert (found.since, found.until) == wanted


@given(st.text(max_size=20))
def test_any_page_number_is_a_page_or_an_error(text: str) -> None:
    try:
        assert runs_request([("page", text)]).page >= 1
    except UsageError as error:
        assert error.hint  # noqa: PT017


def test_addresses_of_files_go_up_as_deep_as_the_page_lies() -> None:
    series = Series(workload="w", baseline="b", candidate="c", machine="m")
    for links, up in ((SiteLinks(0), ""), (SiteLinks(1), "../")):
        found = (links.runs(), links.run("x"), links.history(series), links.compare("a", "b"))
        assert all(address.startswith(up) for address in (*found, links.asset("x.js")))
        assert all(isinstance(address, Address) for address in found)
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

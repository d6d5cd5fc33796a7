"""Names from outside are escaped: no markup, no script, no other page."""

from __future__ import annotations

import html
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.dashboard.sample_dashboard import (
    MATMUL,
    DashboardClient,
    Names,
    comparison,
    open_client,
    write_run,
)
from torchyard.core.comparison import Verdict

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></script><b>",
    "javascript:alert(1)",
    "{{ 7*7 }}{% raw %}",
    "a\nb\r\nSet-Cookie: x=1",
    "\u202egnp.exe\u2066",
    "&lt;b&gt;&#60;",
    "../../../../etc/passwd",
    "%2e%2e%2f%00?x=1#y&z=2+3",
    "*?[a-z]*",
    "\ud800half",
    "a" * 300,
    "';--\\\"",
)
ELEMENTS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "a",
        "nav",
        "ul",
        "ol",
        "li",
        "header",
        "h1",
        "h2",
        "h3",
        "p",
        "main",
        "form",
        "label",
        "input",
        "select",
        "option",
        "span",
        "button",
        "div",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "time",
        "footer",
        "script",
        "svg",
        "polyline",
        "circle",
        "line",
        "rect",
        "text",
        "path",
        "g",
        "figure",
        "figcaption",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
        "pre",
        "strong",
        "br",
        "section",
        "article",
        "progress",
        "noscript",
        "use",
        "code",
        "defs",
        "clippath",
        "output",
        "tspan",
    ]
)
names = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(min_size=1, max_size=60),
    st.text(alphabet="<>\"'&=/ \n\t{}%;:()[]*?#\\`", min_size=1, max_size=40),
)


class MarkupCollector(HTMLParser):
    """Notes every element, attribute and address of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in {"href", "src", "action", "data-events", "data-address"}:
                self.addresses.append(value or "")


def collected(text: str) -> MarkupCollector:
    collector = MarkupCollector()
    collector.feed(text)
    collector.close()
    return collector


def check(text: str) -> None:
    """Only elements of ours, no handlers, no addresses but relative ones."""
    found = collected(text)
    assert found.elements <= ELEMENTS, found.elements - ELEMENTS
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    for address in found.addresses:
        assert re.match(
            r"(\./|run\?|workloads|history\?|compare|live|events\?|assets/|api/|#|data:,$|$)",
            address,
        ), address
    assert "\n" not in re.sub(r'href="[^"]*"', "", "".join(found.addresses))


@contextmanager
def home_of(evil: Names) -> Iterator[tuple[DashboardClient, str]]:
    """A home of one run that is called so everywhere."""
    folder = Path(tempfile.mkdtemp(prefix="torchyard-names-"))
    try:
        workload = replace(MATMUL, name=evil.workload)
        rows = [comparison(workload, Verdict.FASTER, 1.5, evil)]
        write_run(folder / "one", rows=rows, names=evil)
        write_run(folder / "two", rows=rows, names=evil, started="2025-02-01T00:00:00.000Z")
        write_run(folder / "going", rows=rows, names=evil, state="running")
        with open_client(folder) as dashboard:
            yield dashboard, workload.label
    finally:
        shutil.rmtree(folder)


def check_every_page(evil: Names, *, report: bool = False) -> None:
    with home_of(evil) as (seen, _):
        for address in ("/", "/workloads", "/live", "/compare", "/compare?before=one&after=two"):
            check(seen.page(address))
        workloads = seen.data("/api/workloads")["workloads"]
        assert isinstance(workloads, list)
        (row,) = workloads
        expected = {name: row[name] for name in ("workload", "baseline", "candidate", "machine")}
        history = seen.page(f"/history?{urlencode(expected, errors='replace')}")
        check(history)
        assert history.count("run?id=") >= 3
        # The link in the list leads to the same page.
        links = [one for one in collected(seen.page("/workloads")).addresses if "history?" in one]
        assert seen.client.get(links[0]).status_code == 200
        if report:
            check(seen.page("/run?id=one"))
        # What a page says of a request is escaped as well.
        query = urlencode({"study": evil.study[:400]}, errors="replace")
        answer = seen.client.get(f"/?{query}")
        assert answer.status_code in {200, 400}
        check(answer.text)


@pytest.mark.parametrize("first", range(0, len(HOSTILE), 2))
def test_hostile_names_everywhere(first: int) -> None:
    evil = [HOSTILE[(first + offset) % len(HOSTILE)] for offset in range(5)]
    check_every_page(
        Names(
            study=evil[0],
            baseline=f"{evil[1]}-base",
            candidate=evil[1],
            workload=evil[2],
            revision=evil[3],
            note=evil[4],
        ),
        # Drawing the charts of a report takes seconds, and it has tests of its own.
        report=first == 0,
    )


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(study=names, candidate=names, workload=names, note=names, revision=names)
@example(study="\0", candidate="\x1b[31m", workload="\u2028", note="\ufeff", revision="\x7f")
def test_any_names(study: str, candidate: str, workload: str, note: str, revision: str) -> None:
    check_every_page(
        Names(
            study=study,
            baseline="base",
            candidate=candidate,
            workload=workload,
            note=note,
            revision=revision,
        )
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    path=st.sampled_from(
        ["/", "/run", "/workloads", "/history", "/compare", "/events", "/assets/"]
    ),
    query=st.lists(
        st.tuples(
            st.one_of(st.sampled_from(["id", "study", "sort", "page", "since", "before"]), names),
            names,
        ),
        max_size=4,
    ),
    api=st.booleans(),
)
def test_any_query_is_answered_and_never_a_mistake(
    shared_client: DashboardClient, path: str, query: list[tuple[str, str]], api: bool
) -> None:
    address = f"{'/api' if api else ''}{path}?{urlencode(query, errors='replace')}"
    answer = shared_client.client.get(address)
    assert answer.status_code in {200, 400, 404}
    if answer.headers["content-type"].startswith("text/html"):
        check(answer.text)


@pytest.mark.parametrize(
    "name",
    [
        "../one",
        "..%2fone",
        "/etc",
        ".",
        "..",
        "",
        "one/",
        "one/../one",
        "./one",
        "o*",
        "?ne",
        "[o]ne",
        "ONE",
        "one%00",
        "latest",
        "on",
        ".index.sqlite",
    ],
)
@pytest.mark.parametrize("path", ["/run", "/api/run", "/events"])
def test_only_whole_ids_find_a_run(shared_client: DashboardClient, path: str, name: str) -> None:
    answer = shared_client.client.get(f"{path}?id={name}")
    assert answer.status_code in {400, 404}


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2f..%2fpyproject.toml",
        "/assets/%2e%2e/report.css",
        "/assets//etc/passwd",
        "/assets/",
        "/../../etc/passwd",
        "/static/x",
        "/.git/config",
    ],
)
def test_no_path_leads_to_a_file(shared_client: DashboardClient, path: str) -> None:
    answer = shared_client.client.get(f"http://127.0.0.1:8000{path}")
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/?sort=stated", "did you mean &#39;started&#39;"),
        ("/?order=up", "falling, rising"),
        ("/?page=0", "pages are numbered from 1"),
        ("/?page=-1", "pages are numbered from 1"),
        ("/?page=1e9", "pages are numbered from 1"),
        ("/?page=99999999999999999999", "pages are numbered from 1"),
        ("/?page=²", "pages are numbered from 1"),
        ("/?verdict=fast", "faster"),
        ("/?since=yesterday", "a day such as"),
        ("/?since=0001-01-01T00:00%2B23:00", "a day such as"),
        ("/?studdy=x", "did you mean &#39;study&#39;"),
        ("/?study=a&study=b", "duplicate"),
        ("/?study=" + "x" * 501, "too long"),
        ("/?study=a%00b", "zero byte"),
        ("/run", "missing query parameter &#39;id&#39;"),
        ("/history?workload=x", "missing query parameter &#39;baseline&#39;"),
        ("/history?workload=x&baseline=a&candidate=b&metric=watts", "speedup"),
        ("/live?x=1", "unknown query parameter"),
    ],
)
def test_an_invalid_query_names_valid_values(
    shared_client: DashboardClient, address: str, words: str
) -> None:
    answer = shared_client.client.get(address)
    assert answer.status_code == 400
    assert words in answer.text, html.unescape(answer.text)


@pytest.mark.parametrize(
    "address",
    ["/run?id=nobody", "/history?workload=x&baseline=a&candidate=b", "/compare?before=a&after=b"],
)
def test_what_is_not_there_is_not_found(shared_client: DashboardClient, address: str) -> None:
    assert "there is no run" in shared_client.page(address, 404) or "never measured" in (
        shared_client.page(address, 404)
    )
    error = shared_client.data(f"/api{address}", 404)["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "NothingToDo"
    assert error["hint"]


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardClient]:
    home = tmp_path_factory.mktemp("home")
    write_run(home / "one", rows=[comparison(MATMUL, Verdict.FASTER, 1.5)])
    with open_client(home) as dashboard:
        yield dashboard

"""Links between pages, served or written as files, and the queries of served pages. Pure.

Links are relative, so that they work anywhere. A served page is identified by its query, because workload
names may contain any character; a file by a short name of letters derived from it. Invalid values of a
query raise an error that lists the valid ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import MAXYEAR, timedelta
from typing import Any, Final, Literal, TypeVar, get_args
from urllib.parse import urlencode

from torchyard.core.comparison import Verdict
from torchyard.core.records import encode, nearest_hint
from torchyard.errors import UsageError
from torchyard.results.directory import format_utc, parse_utc
from torchyard.results.model import METRICS, RunFilter, Series

Pairs = list[tuple[str, str]]
T = TypeVar("T")

_STEM_LETTERS: Final = 60
_DIGEST_LETTERS: Final = 10


class Address(str):
    """A link of the dashboard, which redaction leaves unchanged."""

    __slots__ = ()


class Links:
    """Links from one page of the server to others; `SiteLinks` are those between files."""

    is_served = True
    """Whether there is a server, which provides filters, live pages and JSON."""

    def runs(self, query: Pairs | None = None) -> str:
        """Return the link to the list of runs."""
        return _with("./", query)

    def run(self, run: str) -> str:
        """Return the link to one run."""
        return _with("run", [("id", run)])

    def workloads(self, query: Pairs | None = None) -> str:
        """Return the link to the list of workloads."""
        return _with("workloads", query)

    def history(self, series: Series) -> str:
        """Return the link to one workload over time."""
        return _with("history", series_query(series))

    def compare(self, before: str = "", after: str = "") -> str:
        """Return the link to two runs; without ids, to the page to choose them."""
        pairs = [("before", before), ("after", after)]
        return _with("compare", [pair for pair in pairs if pair[1]])

    def live(self) -> str:
        """Return the link to the running runs; empty without a server."""
        return "live" if self.is_served else ""

    def events(self, run: str) -> str:
        """Return the link to the stream of a run's progress; empty without a server."""
        return _with("events", [("id", run)]) if self.is_served else ""

    def data(self, page: str, query: Pairs | None = None) -> str:
        """Return the link to the content of a page as JSON; empty without a server."""
        return _with(f"api/{page}", query) if self.is_served else ""

    def asset(self, name: str) -> str:
        """Return the link to a style sheet or script."""
        return f"assets/{name}"


class SiteLinks(Links):
    """Links between files of a site, at `depth` folders; `clean` redacts names, which also become file names."""

    is_served = False

    def __init__(self, depth: int = 0, *, clean: Callable[[str], str] = str) -> None:
        self._up = "../" * depth
        self._clean = clean

    def runs(self, query: Pairs | None = None) -> str:
        """`index.html`; only the page number of a query is used."""
        page = dict(query or []).get("page", "1")
        return self._file("index.html" if page == "1" else f"runs-{page}.html")

    def run(self, run: str) -> str:
        """Below `runs/`."""
        return self._file(f"runs/{self._stem(run)}.html")

    def workloads(self, query: Pairs | None = None) -> str:
        """Only the page number of a query is used."""
        page = dict(query or []).get("page", "1")
        return self._file("workloads.html" if page == "1" else f"workloads-{page}.html")

    def history(self, series: Series) -> str:
        """Below `history/`."""
        key = json.dumps([self._clean(text) for text in encode(series).values()])
        return self._file(f"history/{self._stem(series.workload, key=key)}.html")

    def compare(self, before: str = "", after: str = "") -> str:
        """Below `compare/`."""
        if not before or not after:
            return self._file("compare.html")
        key = json.dumps([self._clean(before), self._clean(after)])
        return self._file(f"compare/{self._stem(after, key=key)}.html")

    def asset(self, name: str) -> str:
        """Below `assets/`, shared by all pages."""
        return self._file(f"assets/{name}")

    def _stem(self, name: str, *, key: str = "") -> str:
        return file_stem(self._clean(name), key=key)

    def _file(self, name: str) -> str:
        return Address(self._up + name)


def series_query(series: Series) -> Pairs:
    """Return the fields of a series as a query."""
    return [pair for pair in encode(series).items() if pair[1] and pair != ("metric", "speedup")]


def file_stem(name: str, *, key: str = "") -> str:
    """Return a file name without suffix for any text: readable letters and a digest, never a path."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_STEM_LETTERS].strip("-")
    digest = hashlib.sha256((key or name).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain}-{digest[:_DIGEST_LETTERS]}" if plain else digest[:_DIGEST_LETTERS]


def _with(path: str, query: Pairs | None) -> str:
    # Lone surrogates cannot be encoded and become question marks.
    return Address(f"{path}?{urlencode(query, errors='replace')}" if query else path)


Query = Iterable[tuple[str, str]]
"""Names and values in the order of the query string."""
RunColumn = Literal["started", "study", "machine", "torch", "revision", "comparisons", "slower"]

PAGE_SIZE: Final = 50
_LONGEST: Final = 500
_LAST_PAGE: Final = 1_000_000
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FILTERS: Final = ("study", "workload", "candidate", "machine", "revision")


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """Filters, order and page of the list of runs or of workloads."""

    texts: tuple[tuple[str, str], ...] = ()
    """Filters as entered, by name, without empty ones."""
    verdict: Verdict | None = None
    since: str = ""
    until: str = ""
    """Days or times, as entered."""
    sort: RunColumn = "started"
    falling: bool = True
    page: int = 1

    @property
    def is_filtered(self) -> bool:
        """Whether some runs are not requested."""
        return bool(self.texts or self.since or self.until or self.verdict is not None)

    @property
    def filters(self) -> RunFilter:
        """The filter for the store; a text without wildcards matches anywhere."""
        return RunFilter(
            **_patterns(self.texts),
            verdicts=(self.verdict,) if self.verdict is not None else (),
            since=_moment(self.since, "since") if self.since else "",
            until=_moment(self.until, "until", end=True) if self.until else "",
        )

    def query(self, **changes: str) -> list[tuple[str, str]]:
        """Return the query of this request with changes; an empty value removes a name."""
        values = {
            **dict(self.texts),
            "verdict": self.verdict.value if self.verdict is not None else "",
            "since": self.since,
            "until": self.until,
            "sort": "" if self.sort == "started" else self.sort,
            "order": "" if self.falling else "rising",
            "page": "" if self.page == 1 else str(self.page),
            **changes,
        }
        return [(name, value) for name, value in values.items() if value]


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Ids of two runs and a variant of each; empty values are not chosen yet."""

    before: str = ""
    after: str = ""
    before_variant: str = ""
    after_variant: str = ""

    @property
    def query(self) -> list[tuple[str, str]]:
        """The request as a query."""
        return [pair for pair in vars(self).items() if pair[1]]


def runs_request(query: Query) -> ListRequest:
    """Parse the query of the list of runs."""
    values = _values(query, (*_FILTERS, "verdict", "since", "until", "sort", "order", "page"))
    for name in ("since", "until"):
        if values.get(name):
            _moment(values[name], name)
    verdict = values.get("verdict", "")
    return ListRequest(
        texts=_texts(values, _FILTERS),
        verdict=_choice("verdict", verdict, Verdict) if verdict else None,
        since=values.get("since", ""),
        until=values.get("until", ""),
        sort=_choice("sort", values.get("sort") or "started", get_args(RunColumn)),
        falling=_choice("order", values.get("order") or "falling", ["falling", "rising"])
        == "falling",
        page=_page(values),
    )


def workloads_request(query: Query) -> ListRequest:
    """Parse the query of the list of workloads."""
    names = ("workload", "candidate", "machine")
    values = _values(query, (*names, "page"))
    return ListRequest(texts=_texts(values, names), page=_page(values))


def run_request(query: Query) -> str:
    """Parse the id of a run."""
    return _required(_values(query, ("id",)), "id")


def history_request(query: Query) -> Series:
    """Parse the series of a history."""
    values = _values(query, Series.__annotations__)
    return Series(
        workload=_required(values, "workload"),
        baseline=_required(values, "baseline"),
        candidate=_required(values, "candidate"),
        machine=values.get("machine", ""),
        metric=_choice("metric", values.get("metric") or "speedup", METRICS),
    )


def plain_request(query: Query) -> None:
    """Check the query of a page without parameters."""
    _values(query, ())


def compare_request(query: Query) -> CompareRequest:
    """Parse the query of a comparison."""
    return CompareRequest(**_values(query, CompareRequest.__annotations__))


def _values(query: Query, valid: Iterable[str]) -> dict[str, str]:
    valid = tuple(valid)
    values: dict[str, str] = {}
    for name, value in query:
        if name not in valid:
            raise UsageError(
                f"unknown query parameter {name[:_LONGEST]!r}",
                hint=nearest_hint(name[:_LONGEST], valid, what="parameter"),
            )
        if name in values:
            raise UsageError(f"duplicate query parameter {name!r}", hint="remove one of them")
        if len(value) > _LONGEST:
            raise UsageError(
                f"query parameter {name!r} is too long", hint=f"use at most {_LONGEST} characters"
            )
        if "\0" in value:
            raise UsageError(f"query parameter {name!r} contains a zero byte", hint="remove it")
        values[name] = value
    return values


def _texts(values: dict[str, str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, values[name].strip()) for name in names if values.get(name, "").strip())


def _required(values: dict[str, str], name: str) -> str:
    if not values.get(name):
        raise UsageError(f"missing query parameter {name!r}", hint="use a link of the dashboard")
    return values[name]


def _choice(name: str, value: str, valid: Iterable[T]) -> T:
    by_name = {str(item): item for item in valid}
    if value not in by_name:
        raise UsageError(
            f"invalid query parameter {name!r}: {value!r}",
            hint=nearest_hint(value, list(by_name), what=name),
        )
    return by_name[value]


def _page(values: dict[str, str]) -> int:
    text = values.get("page") or "1"
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _LAST_PAGE):
        raise UsageError(
            f"invalid query parameter 'page': {text!r}", hint="pages are numbered from 1"
        )
    return int(text[:9])


def _patterns(texts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return filters by name; a text without wildcards matches anywhere."""
    return {name: text if "*" in text or "?" in text else f"*{text}*" for name, text in texts}


def _moment(text: str, name: str, *, end: bool = False) -> str:
    """Parse a day or time to the format of the store; `end` of a day is the start of the next."""
    try:
        moment = parse_utc(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"invalid query parameter {name!r}: {text!r}", hint="use a day such as 2025-01-31"
        ) from error
    if end and _DAY.fullmatch(text) and moment.year < MAXYEAR:
        moment += timedelta(days=1)
    return format_utc(moment, "milliseconds")

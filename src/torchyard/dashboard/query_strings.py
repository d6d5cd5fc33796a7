"""Parse query strings into typed requests. Invalid values raise an error that lists the valid ones.

Pure: no server, no store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import MAXYEAR, timedelta
from typing import Any, Final, Literal, get_args

from torchyard.core.comparison import Verdict
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError
from torchyard.results.directory import format_utc, parse_utc
from torchyard.results.model import METRICS, Metric, RunFilter, Series

Query = Iterable[tuple[str, str]]
"""Names and values in the order of the query string."""
RunColumn = Literal["started", "study", "machine", "torch", "revision", "comparisons", "slower"]

PAGE_SIZE: Final = 50
_LONGEST: Final = 500
_LAST_PAGE: Final = 1_000_000
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FILTERS: Final = ("study", "workload", "candidate", "machine", "revision")


@dataclass(frozen=True, kw_only=True)
class RunsRequest:
    """Filters, order and page of the list of runs."""

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
class WorkloadsRequest:
    """Filters and page of the list of workloads."""

    texts: tuple[tuple[str, str], ...] = ()
    page: int = 1

    @property
    def filters(self) -> RunFilter:
        """The filter for the store."""
        return RunFilter(**_patterns(self.texts))

    def query(self, **changes: str) -> list[tuple[str, str]]:
        """Return the query of this request with changes."""
        page = "" if self.page == 1 else str(self.page)
        values = {**dict(self.texts), "page": page, **changes}
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


def runs_request(query: Query) -> RunsRequest:
    """Parse the query of the list of runs."""
    values = _values(query, (*_FILTERS, "verdict", "since", "until", "sort", "order", "page"))
    for name in ("since", "until"):
        if values.get(name):
            _moment(values[name], name)
    verdict = values.get("verdict", "")
    return RunsRequest(
        texts=_texts(values, _FILTERS),
        verdict=Verdict(_choice("verdict", verdict, list(Verdict))) if verdict else None,
        since=values.get("since", ""),
        until=values.get("until", ""),
        sort=_column(values.get("sort") or "started"),
        falling=_choice("order", values.get("order") or "falling", ["falling", "rising"])
        == "falling",
        page=_page(values),
    )


def workloads_request(query: Query) -> WorkloadsRequest:
    """Parse the query of the list of workloads."""
    names = ("workload", "candidate", "machine")
    values = _values(query, (*names, "page"))
    return WorkloadsRequest(texts=_texts(values, names), page=_page(values))


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
        metric=_metric(values.get("metric") or "speedup"),
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


def _choice(name: str, value: str, valid: Iterable[str]) -> str:
    names = [str(item) for item in valid]
    if value not in names:
        raise UsageError(
            f"invalid query parameter {name!r}: {value!r}",
            hint=nearest_hint(value, names, what=name),
        )
    return value


def _column(value: str) -> RunColumn:
    valid: tuple[RunColumn, ...] = get_args(RunColumn)
    return next(column for column in valid if column == _choice("sort", value, valid))


def _metric(value: str) -> Metric:
    return next(metric for metric in METRICS if metric == _choice("metric", value, METRICS))


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

"""Links between pages, served or written as files; always relative, so that they work anywhere.

A served page is identified by its query, because workload names may contain any character; a file
by a short name of letters derived from it. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

from torchyard.core.records import encode
from torchyard.results.model import Series

Pairs = list[tuple[str, str]]

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
    """Links between files of a site; `depth` is the folder depth of the linking page.

    `clean` redacts names, which also become file names.
    """

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

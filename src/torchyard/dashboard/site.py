"""The dashboard as a folder of files that needs no server: the same pages with other links.

Runs that did not change are not read again. What only a server can do (filters over all runs,
comparing any two, live progress) is left out, and the pages say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from torchyard import __version__
from torchyard.core.stored import METRICS, RunEntry, Wanted
from torchyard.dashboard.archive import Archive
from torchyard.dashboard.assets import asset_kinds, asset_text, runtime_name, style_name
from torchyard.dashboard.compare_view import Chosen
from torchyard.dashboard.links import SiteLinks
from torchyard.dashboard.pages import Pages, run_mark
from torchyard.dashboard.queries import CompareRequest, RunsRequest, WorkloadsRequest
from torchyard.dashboard.site_folder import SiteFolder
from torchyard.errors import ResultsDamaged
from torchyard.reports.page_frame import SHARED_SCRIPTS
from torchyard.reports.sharing import cleaner_of
from torchyard.results.run_reader import Run, read_run

__all__ = ["SITE_POLICY", "Written", "write_site"]

SITE_POLICY: Final = (
    f"default-src 'none'; script-src {SHARED_SCRIPTS}; style-src {SHARED_SCRIPTS}; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
_PAGE_SIZE: Final = 500

Told = Callable[[int, int], None]
"""Told how many of how many files are done."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of the files."""

    folder: Path
    written: int
    unchanged: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file that is to be made."""

    name: str
    make: Callable[[], str]
    key: str = ""
    """What it is made from; empty when that takes no longer than making it."""


def write_site(
    archive: Archive,
    folder: Path,
    *,
    share: bool = False,
    told: Told = lambda _done, _total: None,
) -> Written:
    """Write or renew the site in a folder of its own; `share` leaves out what is private."""
    site = SiteFolder(folder)
    files = list(_Site(archive, share=share).files())
    site.plan([file.name for file in files])
    try:
        for number, file in enumerate(files):
            told(number, len(files))
            if not site.is_made_from(file.name, file.key):
                site.write(file.name, file.make(), key=file.key)
    except BaseException:
        site.leave()
        raise
    site.finish()
    return Written(
        folder=site.folder, written=site.written, unchanged=site.unchanged, removed=site.removed
    )


class _Site:
    """What files there are."""

    def __init__(self, archive: Archive, *, share: bool) -> None:
        self._archive = archive
        self._runs = archive.runs(Wanted())
        self._befores = _befores(self._runs)
        cleaner = cleaner_of(_readable(self._runs)) if share else None
        self._share = share
        self._pages = Pages(archive, policy=SITE_POLICY, cleaner=cleaner)
        clean = cleaner.clean if cleaner is not None else str
        self._top, self._below = SiteLinks(0, clean=clean), SiteLinks(1, clean=clean)

    def files(self) -> Iterator[_File]:
        """Assets first and the entry last: a page that is there finds what it needs."""
        for name in asset_kinds():
            # Its name holds what it is made from, and making Vega takes seconds.
            key = name if name == runtime_name() else ""
            yield _File(name=self._top.asset(name), make=partial(_asset, name), key=key)
        yield from self._run_files()
        yield from self._compare_files()
        yield from self._history_files()
        yield from self._list_files()

    def _run_files(self) -> Iterator[_File]:
        for run in self._runs:
            before = self._befores.get(run.id)
            yield _File(
                name=self._top.run(run.id),
                make=partial(self._pages.run, self._below, run, before=before),
                key=self._key(run, before),
            )

    def _compare_files(self) -> Iterator[_File]:
        pairs = [(self._befores[run.id], run) for run in self._runs if run.id in self._befores]
        for one, other in pairs:
            request = CompareRequest(before=one.id, after=other.id)
            sides = (Chosen(run=one), Chosen(run=other))
            yield _File(
                name=self._top.compare(one.id, other.id),
                make=partial(self._pages.compare, self._below, request, sides),
                key=self._key(other, one),
            )
        make = partial(self._pages.compare_pairs, self._top, pairs)
        yield _File(name=self._top.compare(), make=make)

    def _history_files(self) -> Iterator[_File]:
        for series in self._archive.series(Wanted()):
            for metric in METRICS:
                one = replace(series, metric=metric)
                if metric == "speedup" or self._archive.has_points(one):
                    make = partial(self._pages.history, self._below, one)
                    yield _File(name=self._top.history(one), make=make)

    def _list_files(self) -> Iterator[_File]:
        for page in range(1, _pages(len(self._archive.series(Wanted()))) + 1):
            wanted = WorkloadsRequest(page=page)
            make = partial(self._pages.workloads, self._top, wanted, size=_PAGE_SIZE)
            yield _File(name=self._top.workloads(wanted.query()), make=make)
        for page in range(_pages(len(self._runs)), 0, -1):
            request = RunsRequest(page=page)
            make = partial(self._pages.runs, self._top, request, size=_PAGE_SIZE)
            yield _File(name=self._top.runs(request.query()), make=make)

    def _key(self, *runs: RunEntry | None) -> str:
        """Changes with everything that a page of the runs is made from."""
        if self._share:
            # Names in place of private texts are given anew each time.
            return ""
        facts: list[object] = [__version__, style_name(), runtime_name()]
        for run in runs:
            if run is not None:
                mark = run_mark(Path(run.folder))
                facts.append([run.id, run.state, run.damage, run.notes, mark])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def _asset(name: str) -> str:
    return asset_text(name) or ""


def _pages(items: int) -> int:
    return max(1, -(-items // _PAGE_SIZE))


def _readable(runs: list[RunEntry]) -> Iterator[Run]:
    for run in runs:
        with suppress(ResultsDamaged):
            yield read_run(Path(run.folder))


def _befores(runs: list[RunEntry]) -> dict[str, RunEntry]:
    """For each run the one of the same study on the same machine before it."""
    found: dict[str, RunEntry] = {}
    newest: dict[tuple[str, str], RunEntry] = {}
    for run in reversed(runs):
        if run.damage:
            continue
        same = (run.study, run.machine)
        if same in newest:
            found[run.id] = newest[same]
        newest[same] = run
    return found

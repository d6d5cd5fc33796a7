"""The dashboard as a folder of files that needs no server: the same pages with other links.

Runs that did not change are not read again. What only a server can do (filters over all runs,
comparing any two, live progress) is left out, and the pages say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
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
from torchyard.reports.page_frame import SHARED_SCRIPTS

__all__ = ["SITE_POLICY", "Written", "write_site"]

SITE_POLICY: Final = (
    f"default-src 'none'; script-src {SHARED_SCRIPTS}; style-src {SHARED_SCRIPTS}; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
_PAGE_SIZE: Final = 500
_TOP, _BELOW = SiteLinks(0), SiteLinks(1)

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
    archive: Archive, folder: Path, *, told: Told = lambda _done, _total: None
) -> Written:
    """Write or renew the site in a folder of its own."""
    site = SiteFolder(folder)
    files = list(_files(archive))
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


def _files(archive: Archive) -> Iterator[_File]:
    # Assets first and the entry last: a page that is there finds what it needs.
    for name in asset_kinds():
        # Their names hold what they are made from, and Vega takes seconds.
        key = name if name == runtime_name() else ""
        yield _File(name=f"assets/{name}", make=partial(_asset, name), key=key)
    pages = Pages(archive, policy=SITE_POLICY)
    runs = archive.runs(Wanted())
    yield from _run_files(pages, runs)
    yield from _compare_files(pages, runs)
    yield from _history_files(archive, pages)
    yield from _list_files(archive, pages, len(runs))


def _run_files(pages: Pages, runs: list[RunEntry]) -> Iterator[_File]:
    before = _befores(runs)
    for run in runs:
        earlier = before.get(run.id)
        key = _key(run, earlier.id if earlier else "")
        yield _File(
            name=_TOP.run(run.id),
            make=partial(pages.run, _BELOW, run, before=earlier),
            key=key,
        )


def _compare_files(pages: Pages, runs: list[RunEntry]) -> Iterator[_File]:
    before = _befores(runs)
    pairs = [(before[run.id], run) for run in runs if run.id in before]
    for one, other in pairs:
        request = CompareRequest(before=one.id, after=other.id)
        sides = (Chosen(run=one), Chosen(run=other))
        yield _File(
            name=_TOP.compare(one.id, other.id),
            make=partial(pages.compare, _BELOW, request, sides),
            key=_key(one, _key(other)),
        )
    yield _File(name=_TOP.compare(), make=partial(pages.compare_pairs, _TOP, pairs))


def _history_files(archive: Archive, pages: Pages) -> Iterator[_File]:
    for series in archive.series(Wanted()):
        for metric in METRICS:
            one = replace(series, metric=metric)
            if metric == "speedup" or archive.points(one):
                yield _File(name=_TOP.history(one), make=partial(pages.history, _BELOW, one))


def _list_files(archive: Archive, pages: Pages, runs: int) -> Iterator[_File]:
    series = len(archive.series(Wanted()))
    for page in range(1, max(1, -(-series // _PAGE_SIZE)) + 1):
        wanted = WorkloadsRequest(page=page)
        yield _File(
            name=_TOP.workloads(wanted.query()),
            make=partial(pages.workloads, _TOP, wanted, size=_PAGE_SIZE),
        )
    for page in range(max(1, -(-runs // _PAGE_SIZE)), 0, -1):
        request = RunsRequest(page=page)
        yield _File(
            name=_TOP.runs(request.query()),
            make=partial(pages.runs, _TOP, request, size=_PAGE_SIZE),
        )


def _asset(name: str) -> str:
    return asset_text(name) or ""


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


def _key(run: RunEntry, *more: str) -> str:
    """Changes with everything that a page of the run is made from."""
    made_from = [
        __version__,
        style_name(),
        runtime_name(),
        run.id,
        run.state,
        run.damage,
        run.notes,
        run_mark(Path(run.folder)),
        more,
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:20]

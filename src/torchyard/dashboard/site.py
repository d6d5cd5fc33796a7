"""Write the dashboard as a folder of static files: the same pages without features that need a server.

Runs that did not change are not read again. `.torchyard-site.json` names the files that Torchyard wrote and their
sources: only a folder with this file, or an empty one, is written to, and only files named in it are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard import __version__
from torchyard.bench.report.page import SHARED_SCRIPTS
from torchyard.bench.report.sharing import redactor_of
from torchyard.dashboard.links import CompareRequest, ListRequest, SiteLinks
from torchyard.dashboard.lists import Chosen
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.pages import (
    Pages,
    asset_kinds,
    asset_text,
    run_mark,
    runtime_name,
    style_name,
)
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_writing import (
    replace_bytes,
    replace_file,
    to_json_text,
    write_error,
    write_errors,
)
from torchyard.results.model import METRICS, RunEntry, RunFilter
from torchyard.results.run_reader import Run, read_run

MARKER: Final = ".torchyard-site.json"
_FORMAT: Final = 1


class SiteFolder:
    """The folder of a site while it is written."""

    def __init__(self, folder: Path) -> None:
        """Claim the folder; raise UsageError if it contains other files."""
        self.folder = folder.absolute()
        self.written = 0
        self.unchanged = 0
        self.removed = 0
        self._before = _claimed(self.folder)
        self._now: dict[str, str] = {}

    def is_made_from(self, name: str, key: str) -> bool:
        """Return whether the file was already created from this source; it is then kept."""
        if self._before.get(name) != key or not key or not (self.folder / name).is_file():
            return False
        self._now[name] = key
        self.unchanged += 1
        return True

    def plan(self, names: list[str]) -> None:
        """Record the files before any is written, so that an interrupted call leaves none unknown."""
        self._save({**dict.fromkeys(names, ""), **self._before})

    def write(self, name: str, text: str, *, key: str = "") -> None:
        """Write a file, unless it has the same content already."""
        path = self.folder / _safe(name)
        self._now[name] = key
        # Names may contain lone surrogates.
        data = text.encode("utf-8", "replace")
        with write_errors(path, kept="existing data"):
            if path.is_file() and path.read_bytes() == data:
                self.unchanged += 1
                return
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data)
        self.written += 1

    def finish(self) -> None:
        """Delete files of an earlier call that are no longer part of the site."""
        for name in self._before.keys() - self._now.keys():
            path = self.folder / _safe(name)
            with suppress(OSError):
                path.unlink()
                self.removed += 1
        for name in {str(PurePosixPath(name).parent) for name in self._before} - {"."}:
            with suppress(OSError):
                (self.folder / _safe(name)).rmdir()
        self._before = {}
        self._save(self._now)

    def save_progress(self) -> None:
        """Record the files written so far; nothing is deleted."""
        self._save({**self._before, **self._now})

    def _save(self, files: dict[str, str]) -> None:
        facts = {"format": _FORMAT, "torchyard": __version__, "files": files}
        replace_file(self.folder / MARKER, to_json_text(facts, indent=0) + "\n")


def _claimed(folder: Path) -> dict[str, str]:
    """Return the files that an earlier call wrote."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        exists = any(folder.iterdir())
        if exists and not (folder / MARKER).is_file():
            raise _foreign_folder_error(folder, f"it contains no {MARKER}")
        facts = json.loads((folder / MARKER).read_bytes() if exists else b"{}")
    except FileExistsError as error:
        raise _foreign_folder_error(folder, "it is not a folder") from error
    except (ValueError, RecursionError) as error:
        raise _foreign_folder_error(folder, f"its {MARKER} is damaged") from error
    except OSError as error:
        raise write_error(folder, error, kept="existing data") from error
    if not exists:
        return {}
    files = facts.get("files") if isinstance(facts, dict) else None
    if not isinstance(files, dict) or facts.get("format") != _FORMAT:
        raise _foreign_folder_error(folder, f"its {MARKER} is of another version")
    return {name: str(key) for name, key in files.items() if _is_safe(name)}


def _foreign_folder_error(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"{folder} is not a site of Torchyard",
        why=f"{why}, so it may contain other files",
        hint="use a new or empty folder",
    )


def _safe(name: str) -> str:
    if not _is_safe(name):
        raise ValueError(f"{name!r} is not a file name inside a site")
    return name


def _is_safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and not {"..", "."} & set(parts)


SITE_POLICY: Final = (
    f"default-src 'none'; script-src {SHARED_SCRIPTS}; style-src {SHARED_SCRIPTS}; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
_PAGE_SIZE: Final = 500

Progress = Callable[[int, int], None]
"""Progress callback: files done, and the total."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file of the site and how to create it."""

    name: str
    make: Callable[[], str]
    key: str = ""
    """Digest of its source; empty if the file is always created again."""


def write_site(
    live_store: LiveStore,
    folder: Path,
    *,
    share: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> SiteFolder:
    """Write or update a site; `share` redacts private text."""
    site = SiteFolder(folder)
    files = list(_Site(live_store, share=share).files())
    site.plan([file.name for file in files])
    try:
        for number, file in enumerate(files):
            progress(number, len(files))
            if not site.is_made_from(file.name, file.key):
                site.write(file.name, file.make(), key=file.key)
    except BaseException:
        site.save_progress()
        raise
    site.finish()
    return site


class _Site:
    """The files of a site."""

    def __init__(self, live_store: LiveStore, *, share: bool) -> None:
        self._live_store = live_store
        self._runs = live_store.runs(RunFilter())
        self._previous = _previous_runs(self._runs)
        cleaner = redactor_of(_readable(self._runs)) if share else None
        self._share = share
        self._pages = Pages(live_store, policy=SITE_POLICY, cleaner=cleaner)
        clean = cleaner.clean if cleaner is not None else str
        self._top, self._below = SiteLinks(0, clean=clean), SiteLinks(1, clean=clean)

    def files(self) -> Iterator[_File]:
        """Yield assets first and the index last, so that every written page is complete."""
        for name in asset_kinds():
            # Its name contains the versions, and creating Vega takes seconds.
            key = name if name == runtime_name() else ""
            yield _File(name=self._top.asset(name), make=partial(asset_text, name), key=key)
        yield from self._run_files()
        yield from self._compare_files()
        yield from self._history_files()
        yield from self._list_files()

    def _run_files(self) -> Iterator[_File]:
        for run in self._runs:
            before = self._previous.get(run.id)
            yield _File(
                name=self._top.run(run.id),
                make=partial(self._pages.run, self._below, run, before=before),
                key=self._key(run, before),
            )

    def _compare_files(self) -> Iterator[_File]:
        pairs = [(self._previous[run.id], run) for run in self._runs if run.id in self._previous]
        for one, other in pairs:
            request = CompareRequest(before=one.id, after=other.id)
            sides = (Chosen(run=one), Chosen(run=other))
            yield _File(
                name=self._top.compare(one.id, other.id),
                make=partial(self._pages.compare, self._below, request, sides),
                key=self._key(other, one),
            )
        make = partial(self._pages.compare, self._top, pairs=pairs)
        yield _File(name=self._top.compare(), make=make)

    def _history_files(self) -> Iterator[_File]:
        for series in self._live_store.series(RunFilter()):
            for metric in METRICS:
                one = replace(series, metric=metric)
                if metric == "speedup" or self._live_store.has_points(one):
                    make = partial(self._pages.history, self._below, one)
                    yield _File(name=self._top.history(one), make=make)

    def _list_files(self) -> Iterator[_File]:
        for page in range(1, _pages(len(self._live_store.series(RunFilter()))) + 1):
            workloads = ListRequest(page=page)
            make = partial(self._pages.workloads, self._top, workloads, size=_PAGE_SIZE)
            yield _File(name=self._top.workloads(workloads.query()), make=make)
        for page in range(_pages(len(self._runs)), 0, -1):
            request = ListRequest(page=page)
            make = partial(self._pages.runs, self._top, request, size=_PAGE_SIZE)
            yield _File(name=self._top.runs(request.query()), make=make)

    def _key(self, *runs: RunEntry | None) -> str:
        """Return a digest of everything that a page of these runs depends on."""
        if self._share:
            # Replacements of private text are chosen again each time.
            return ""
        facts: list[object] = [__version__, style_name(), runtime_name()]
        for run in runs:
            if run is not None:
                mark = run_mark(Path(run.folder))
                facts.append([run.id, run.state, run.damage, run.notes, mark])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def _pages(items: int) -> int:
    return max(1, -(-items // _PAGE_SIZE))


def _readable(runs: list[RunEntry]) -> Iterator[Run]:
    for run in runs:
        with suppress(ResultsDamaged):
            yield read_run(Path(run.folder))


def _previous_runs(runs: list[RunEntry]) -> dict[str, RunEntry]:
    """Return the previous run of the same study on the same machine, by run id."""
    previous: dict[str, RunEntry] = {}
    newest: dict[tuple[str, str], RunEntry] = {}
    for run in reversed(runs):
        if run.damage:
            continue
        same = (run.study, run.machine)
        if same in newest:
            previous[run.id] = newest[same]
        newest[same] = run
    return previous

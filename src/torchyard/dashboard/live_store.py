"""Read runs for the dashboard: a thread-safe store that refreshes itself.

Scans for new runs at most every few seconds, and less often if a scan takes long. The current state
of a run is read from its folder, not from the index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Verdict
from torchyard.errors import ResultsDamaged
from torchyard.process.owner import is_gone
from torchyard.results.directory import RUN_FILE
from torchyard.results.history.changes import ChangeCache
from torchyard.results.index.entries import entries_of, marks_in
from torchyard.results.index.store import Store
from torchyard.results.model import (
    ComparisonEntry,
    Metric,
    RunEntry,
    RunFilter,
    Series,
    SeriesPoint,
)
from torchyard.results.run_reader import read_info


class RunState:
    """The current state of a run; its file is read only if it changed.

    Reading takes time on a machine that is being measured.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark: tuple[int, int] | None = None
        self._recorded = ""
        self._owner: object = None

    def now(self) -> str:
        """Return the recorded state; `interrupted` if the process of the run has ended."""
        try:
            facts = (self._folder / RUN_FILE).stat()
        except OSError:
            return "removed"
        mark = (facts.st_mtime_ns, facts.st_ino)
        if mark != self._mark:
            try:
                info = read_info(self._folder)
            except ResultsDamaged:
                return "damaged"
            self._mark, self._recorded = mark, str(info.get("state"))
            self._owner = info.get("owner")
        ended = self._recorded == "running" and is_gone(self._owner)
        return "interrupted" if ended else self._recorded


MOST_RECENT: Final = 60
"""Maximum number of points of a sparkline."""

_FRESH_S: Final = 2.0
_SCAN_SHARE: Final = 10
"""Scanning for new runs takes at most a tenth of the time."""
_NEAR_RUNS: Final = 200
"""Number of runs that are searched for the previous run of a study."""
_NEWEST_FAILED: Final = 1000
"""Number of the newest failed or wrong comparisons that are searched for workloads without a history,
because they never had a number."""


class LiveStore:
    """The runs of one results directory."""

    def __init__(
        self, home: Path | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Open the store and scan for runs; the first scan of many runs takes a while."""
        self.store = Store.open(home)
        self.home = self.store.home
        self.change_cache = ChangeCache()
        """Cached changes of histories."""
        self._recent: dict[Series, tuple[ComparisonEntry, ...]] = {}
        self._scanning = threading.Lock()
        self._fresh_until_s = 0.0
        self._scan(progress)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    @property
    def warnings(self) -> list[str]:
        """Problems of the store; query results are still correct."""
        return self.store.warnings

    def runs(self, filters: RunFilter) -> list[RunEntry]:
        """Return matching runs with their current states, newest first."""
        return [_with_current_state(entry) for entry in self._fresh().runs(filters)]

    def run(self, name: str) -> RunEntry | None:
        """Return the run of exactly this id, even if it is not in the index yet."""
        indexed = next(
            (entry for entry in self.runs(RunFilter(run=name)) if entry.id == name), None
        )
        if indexed is not None:
            return indexed
        # It is new, or another process is rebuilding the index. Only names of existing folders
        # are used as a path.
        listed = next((mark for mark in marks_in(self.home) if mark == name), None)
        return (
            _with_current_state(entries_of(self.home / listed).run) if listed is not None else None
        )

    def before(self, entry: RunEntry) -> RunEntry | None:
        """Return the previous run of the same study on the same machine."""
        if entry.damage or not entry.started:
            return None
        earlier = self._fresh().runs(RunFilter(until=entry.started, limit=_NEAR_RUNS))
        same = (entry.study, entry.machine)
        return next((e for e in earlier if (e.study, e.machine) == same and not e.damage), None)

    def running(self) -> list[RunEntry]:
        """Return the running runs among the newest ones, newest first."""
        newest = self.runs(RunFilter(limit=_NEAR_RUNS))
        return [entry for entry in newest if entry.state == "running"]

    def series(self, filters: RunFilter, metric: Metric = "speedup") -> list[Series]:
        """Return matching series, including workloads that always failed, which have no points."""
        store = self._fresh()
        matching = dict.fromkeys(store.series(filters, metric))
        failed = (Verdict.FAILED, Verdict.WRONG)
        for entry in store.comparisons(replace(filters, verdicts=failed, limit=_NEWEST_FAILED)):
            matching.setdefault(Series.of(entry, metric))
        return list(matching)

    def comparisons(self, filters: RunFilter) -> list[ComparisonEntry]:
        """Return matching comparisons, newest first."""
        return self._fresh().comparisons(filters)

    def comparisons_of(self, runs: Iterable[RunEntry]) -> dict[str, list[ComparisonEntry]]:
        """Return the comparisons of each run by its id."""
        store = self._fresh()
        # The store treats the id of a run as a prefix.
        return {
            run.id: [one for one in store.comparisons(RunFilter(run=run.id)) if one.run == run.id]
            for run in runs
            if not run.damage
        }

    def points(self, series: Series) -> list[SeriesPoint]:
        """Return the points of a series, oldest first."""
        return self._fresh().points(series)

    def has_points(self, series: Series) -> bool:
        """Return whether the series has points."""
        return series in self._fresh().series(RunFilter(**series.names), series.metric)

    def recent(self, series: Series) -> tuple[ComparisonEntry, ...]:
        """Return the comparisons of exactly this series, newest first, at most `MOST_RECENT`.

        Cached until a run changes, because a list needs them for every series of a page.
        """
        store = self._fresh()
        if series not in self._recent:
            self._recent[series] = _newest(store, series)
        return self._recent[series]

    def latest(self, series: Series) -> ComparisonEntry | None:
        """Return the newest comparison of exactly this series."""
        return next(iter(self.recent(series)), None)

    def _fresh(self) -> Store:
        # One thread scans; the others use the current index.
        if time.monotonic() >= self._fresh_until_s and self._scanning.acquire(blocking=False):
            try:
                self._scan(None)
            finally:
                self._scanning.release()
        return self.store

    def _scan(self, progress: Callable[[int, int], None] | None) -> None:
        result = self.store.refresh(progress)
        if result.added or result.changed or result.gone:
            self._recent = {}
        self._fresh_until_s = time.monotonic() + max(_FRESH_S, result.elapsed_s * _SCAN_SHARE)


def _with_current_state(entry: RunEntry) -> RunEntry:
    if entry.state != "running" or entry.damage:
        return entry
    return replace(entry, state=RunState(Path(entry.folder)).now())


def _newest(store: Store, series: Series) -> tuple[ComparisonEntry, ...]:
    # The store treats a name as a prefix or a pattern; if that matches other series, all rows are
    # read.
    for limit in (MOST_RECENT, None):
        matching = store.comparisons(RunFilter(**series.names, limit=limit))
        exact = [entry for entry in matching if Series.of(entry).names == series.names]
        if len(exact) == len(matching) or limit is None:
            return tuple(exact[:MOST_RECENT])
    return ()

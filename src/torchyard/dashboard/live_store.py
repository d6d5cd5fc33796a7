"""Read runs for the dashboard: a thread-safe store that is kept up to date.

Scans for new runs at most every few seconds, and less often where a scan takes long. The current
state of a run is read from its folder, not from the index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Verdict
from torchyard.errors import ResultsDamaged
from torchyard.process.owner import is_gone
from torchyard.results.directory import RUN_FILE
from torchyard.results.history.changes import HistoryMemory
from torchyard.results.index.entries import entries_of
from torchyard.results.index.folders import marks_in
from torchyard.results.index.store import Store
from torchyard.results.model import ComparisonEntry, Metric, RunEntry, Series, SeriesPoint, Wanted
from torchyard.results.run_reader import read_info


class RunState:
    """Asked again and again while a run goes: its file is read only when it changed.

    A bench measures meanwhile, and reading costs time on the same machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark: tuple[int, int] | None = None
        self._said = ""
        self._owner: Mapping[str, Any] = {}

    def now(self) -> str:
        """What the run's own file says; `interrupted` when its process is gone."""
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
            self._mark, self._said = mark, str(info.get("state"))
            owner = info.get("owner")
            self._owner = owner if isinstance(owner, Mapping) else {}
        return "interrupted" if self._said == "running" and is_gone(self._owner) else self._said


def state_now(folder: Path) -> str:
    """The same, asked once."""
    return RunState(folder).now()


MOST_RECENT: Final = 60
"""As many points as a small line can show."""

_FRESH_S: Final = 2.0
_LOOKING_SHARE: Final = 10
"""Looking for new runs takes at most a tenth of the time."""
_NEAR_RUNS: Final = 200
"""How far back the run before another one is looked for."""
_NEWEST_BAD: Final = 1000
"""How many of the newest failed or wrong comparisons are looked at for workloads that never had a
number, which therefore have no history."""


class Archive:
    """The runs of one home."""

    def __init__(
        self, home: Path | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Open the store and look for runs; at a large home the first look takes a while."""
        self.store = Store.open(home)
        self.home = self.store.home
        self.memory = HistoryMemory()
        """What was found in histories so far, so that a page asked for again costs little."""
        self._recent: dict[Series, tuple[ComparisonEntry, ...]] = {}
        self._looking = threading.Lock()
        self._fresh_until_s = 0.0
        self._look(progress)

    def close(self) -> None:
        """Give the store back."""
        self.store.close()

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the store; its answers are right all the same."""
        return self.store.warnings

    def runs(self, wanted: Wanted) -> list[RunEntry]:
        """Newest first; a running one whose process is gone is interrupted."""
        return [_as_it_is(entry) for entry in self._fresh().runs(wanted)]

    def run(self, name: str) -> RunEntry | None:
        """The run of exactly this id, also one that the index does not have yet."""
        known = next((entry for entry in self.runs(Wanted(run=name)) if entry.id == name), None)
        if known is not None:
            return known
        # It is new, or another process is making the index anew. Only a name that the home lists
        # becomes a path.
        listed = next((found for found in marks_in(self.home) if found == name), None)
        return _as_it_is(entries_of(self.home / listed).run) if listed is not None else None

    def before(self, entry: RunEntry) -> RunEntry | None:
        """The run of the same study on the same machine before this one."""
        if entry.damage or not entry.started:
            return None
        found = self._fresh().runs(Wanted(until=entry.started, limit=_NEAR_RUNS))
        same = (entry.study, entry.machine)
        return next((e for e in found if (e.study, e.machine) == same and not e.damage), None)

    def going(self) -> list[RunEntry]:
        """Runs that are going now, newest first; none of them began long ago."""
        newest = self.runs(Wanted(limit=_NEAR_RUNS))
        return [entry for entry in newest if entry.state == "running"]

    def series(self, wanted: Wanted, metric: Metric = "speedup") -> list[Series]:
        """What there are histories of; workloads that only ever failed have an empty one."""
        store = self._fresh()
        found = dict.fromkeys(store.series(wanted, metric))
        bad = (Verdict.FAILED, Verdict.WRONG)
        for entry in store.comparisons(replace(wanted, verdicts=bad, limit=_NEWEST_BAD)):
            found.setdefault(
                Series(
                    workload=entry.workload,
                    baseline=entry.baseline,
                    candidate=entry.candidate,
                    machine=entry.machine,
                    metric=metric,
                )
            )
        return list(found)

    def points(self, series: Series) -> list[SeriesPoint]:
        """A history, oldest first."""
        return self._fresh().points(series)

    def has_points(self, series: Series) -> bool:
        """Whether there is a history of it."""
        return series in self._fresh().series(_of(series), series.metric)

    def recent(self, series: Series) -> tuple[ComparisonEntry, ...]:
        """The newest comparisons of exactly this series, newest first, at most `MOST_RECENT`.

        Kept until any run changes: a list asks this of every series on its page.
        """
        store = self._fresh()
        if series not in self._recent:
            self._recent[series] = _newest(store, series)
        return self._recent[series]

    def latest(self, series: Series) -> ComparisonEntry | None:
        """The newest comparison of exactly this series."""
        return next(iter(self.recent(series)), None)

    def _fresh(self) -> Store:
        # One thread looks; the others answer with what there is.
        if time.monotonic() >= self._fresh_until_s and self._looking.acquire(blocking=False):
            try:
                self._look(None)
            finally:
                self._looking.release()
        return self.store

    def _look(self, progress: Callable[[int, int], None] | None) -> None:
        found = self.store.refresh(progress)
        if found.added or found.changed or found.gone:
            self._recent = {}
        self._fresh_until_s = time.monotonic() + max(_FRESH_S, found.elapsed_s * _LOOKING_SHARE)


def _as_it_is(entry: RunEntry) -> RunEntry:
    if entry.state != "running" or entry.damage:
        return entry
    return replace(entry, state=state_now(Path(entry.folder)))


def _of(series: Series) -> Wanted:
    return Wanted(
        workload=series.workload,
        baseline=series.baseline,
        candidate=series.candidate,
        machine=series.machine,
    )


def _newest(store: Store, series: Series) -> tuple[ComparisonEntry, ...]:
    names = (series.workload, series.baseline, series.candidate, series.machine)
    # The store takes a name for the beginning of others, and one with * for a pattern: when those
    # come in between, all are asked for.
    for limit in (MOST_RECENT, None):
        found = store.comparisons(replace(_of(series), limit=limit))
        exact = [e for e in found if (e.workload, e.baseline, e.candidate, e.machine) == names]
        if len(exact) == len(found) or limit is None:
            return tuple(exact[:MOST_RECENT])
    return ()

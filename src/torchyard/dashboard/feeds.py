"""Progress of running benchmarks as server-sent events, read once for all watchers.

A feed is the progress of one run. It polls the run folder twice a second while anyone watches,
and ends when the run ends, when its process is gone, or when the server stops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.to_thread import run_sync

from torchyard.dashboard.live_store import RunState
from torchyard.results.compare.report import finite
from torchyard.results.run_writer import ProgressTail

__all__ = ["MOST_WATCHERS", "Feeds"]

MOST_WATCHERS: Final = 500
"""More are told to come back later: each is an open connection."""
_PAUSE_S: Final = 0.5
_STILL_THERE_S: Final = 15.0
"""A comment after so long a silence keeps proxies from closing the connection."""
_RETRY_MS: Final = 3000


class Feeds:
    """One feed for each run that is watched."""

    def __init__(self, *, most_watchers: int = MOST_WATCHERS) -> None:
        self._most_watchers = most_watchers
        self._feeds: dict[Path, _Feed] = {}
        self._watchers = 0
        self._stopped = False

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return self._watchers

    @property
    def is_full(self) -> bool:
        """Whether another watcher is one too many."""
        return self._watchers >= self._most_watchers

    def stop(self) -> None:
        """End every stream at its next look; may be called from a signal handler."""
        self._stopped = True

    async def watch(self, folder: Path) -> AsyncIterator[str]:
        """Server-sent events: `progress` for each line of the run's file, then one `end`."""
        feed = self._feeds.setdefault(folder, _Feed(folder))
        self._watchers += 1
        feed.watchers += 1
        try:
            yield f"retry: {_RETRY_MS}\n\n"
            place, silent_s = 0, 0.0
            while not self._stopped:
                await feed.look()
                while place < len(feed.records):
                    yield _event("progress", feed.records[place], number=place + 1)
                    place += 1
                    silent_s = 0.0
                if feed.state != "running":
                    yield _event("end", {"state": feed.state})
                    return
                await anyio.sleep(_PAUSE_S)
                silent_s += _PAUSE_S
                if silent_s >= _STILL_THERE_S:
                    yield ": still there\n\n"
                    silent_s = 0.0
        finally:
            self._watchers -= 1
            feed.watchers -= 1
            if feed.watchers == 0:
                self._feeds.pop(folder, None)


class _Feed:
    """What was read of one run so far."""

    def __init__(self, folder: Path) -> None:
        self.records: list[dict[str, Any]] = []
        self.state = "running"
        self.watchers = 0
        self._run = RunState(folder)
        self._tail = ProgressTail(folder)
        self._looked_s = -_PAUSE_S
        self._looking = anyio.Lock()

    async def look(self) -> None:
        """Read what is new, unless another watcher has just done so."""
        async with self._looking:
            now_s = anyio.current_time()
            if now_s - self._looked_s < _PAUSE_S * 0.9 or self.state != "running":
                return
            # In a thread: a network file system can take its time.
            await run_sync(self._read)
            self._looked_s = anyio.current_time()

    def _read(self) -> None:
        # Asked first and told last: nobody sees the end before the events that came before it.
        state = self._run.now()
        while more := self._tail.more():
            self.records.extend(more)
        self.state = state


def _event(name: str, data: dict[str, Any], *, number: int | None = None) -> str:
    """One event; JSON has no line breaks of its own, so that it is one line of data."""
    mark = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{mark}data: {json.dumps(finite(data), allow_nan=False)}\n\n"

"""Progress of running benchmarks as server-sent events, read once for all clients.

A feed is the progress of one run. It polls the run folder twice a second while a client is
connected, and ends when the run or its process ends, or when the server stops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.to_thread import run_sync

from torchyard.dashboard.live_store import RunState
from torchyard.presentation.tables import finite
from torchyard.results.run_writer import ProgressTail

MOST_WATCHERS: Final = 500
"""Maximum number of streams; each is an open connection."""
_PAUSE_S: Final = 0.5
_KEEP_ALIVE_S: Final = 15.0
"""Interval of keep-alive comments, so that proxies do not close the connection."""
_RETRY_MS: Final = 3000


class Feeds:
    """One feed per watched run."""

    def __init__(self, *, most_watchers: int = MOST_WATCHERS) -> None:
        self._most_watchers = most_watchers
        self._feeds: dict[Path, _Feed] = {}
        self._watchers = 0
        self._stopped = False

    @property
    def watchers(self) -> int:
        """Number of open streams."""
        return self._watchers

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is reached."""
        return self._watchers >= self._most_watchers

    def stop(self) -> None:
        """End every stream at its next poll; may be called from a signal handler."""
        self._stopped = True

    async def watch(self, folder: Path) -> AsyncIterator[str]:
        """Yield server-sent events: `progress` for each record of the run, then one `end`."""
        feed = self._feeds.setdefault(folder, _Feed(folder))
        self._watchers += 1
        feed.watchers += 1
        try:
            yield f"retry: {_RETRY_MS}\n\n"
            index, silent_s = 0, 0.0
            while not self._stopped:
                await feed.poll()
                while index < len(feed.records):
                    yield _event("progress", feed.records[index], number=index + 1)
                    index += 1
                    silent_s = 0.0
                if feed.state != "running":
                    yield _event("end", {"state": feed.state})
                    return
                await anyio.sleep(_PAUSE_S)
                silent_s += _PAUSE_S
                if silent_s >= _KEEP_ALIVE_S:
                    yield ": keep-alive\n\n"
                    silent_s = 0.0
        finally:
            self._watchers -= 1
            feed.watchers -= 1
            if feed.watchers == 0:
                self._feeds.pop(folder, None)


class _Feed:
    """The records of one run that were read so far."""

    def __init__(self, folder: Path) -> None:
        self.records: list[dict[str, Any]] = []
        self.state = "running"
        self.watchers = 0
        self._run = RunState(folder)
        self._tail = ProgressTail(folder)
        self._polled_s = -_PAUSE_S
        self._polling = anyio.Lock()

    async def poll(self) -> None:
        """Read new records, unless another client has just done so."""
        async with self._polling:
            now_s = anyio.current_time()
            if now_s - self._polled_s < _PAUSE_S * 0.9 or self.state != "running":
                return
            # In a thread, because a network file system may be slow.
            await run_sync(self._read)
            self._polled_s = anyio.current_time()

    def _read(self) -> None:
        # Read the state first and set it last, so that the end comes after all events.
        state = self._run.now()
        while more := self._tail.more():
            self.records.extend(more)
        self.state = state


def _event(name: str, data: dict[str, Any], *, number: int | None = None) -> str:
    """Return one event; JSON without line breaks is one line of data."""
    mark = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{mark}data: {json.dumps(finite(data), allow_nan=False)}\n\n"

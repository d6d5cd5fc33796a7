"""Limits on connections: slow, idle and excess clients must not keep others out.

uvicorn closes idle keep-alive connections and bounds the size of a request header. It has no limit
on the time that a request may take to arrive, none on the time that a client may take to read an
answer, and its `limit_concurrency` rejects new clients instead of closing stalled ones. This module
adds the three.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["LimitedProtocol", "Limits", "close_stalled", "default_limits", "limited_protocol"]

_MOST_CONNECTIONS: Final = 1024
_RESERVED_DESCRIPTORS: Final = 64
"""For the index, run folders, sockets of the event loop and standard streams."""
_FEWEST_CONNECTIONS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many connections are held, and for how long."""

    connections: int = _MOST_CONNECTIONS
    """All of them. A new one beyond it replaces a waiting one, or is closed if all are busy."""
    waiting: int = 128
    """Connections without a complete request: half-open, slow or idle."""
    request_s: float = 10.0
    """For a request to arrive completely, from the first moment of waiting for it."""
    stalled_write_s: float = 30.0
    """Without any progress of a client that reads an answer."""
    keep_alive_s: int = 5


def default_limits() -> Limits:
    """Fit the number of connections into the number of files that this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _RESERVED_DESCRIPTORS
    if soft not in (resource.RLIM_INFINITY, -1) and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (OSError, ValueError):
            pass
        connections = max(_FEWEST_CONNECTIONS, soft - _RESERVED_DESCRIPTORS)
    else:
        connections = _MOST_CONNECTIONS
    return Limits(connections=connections, waiting=min(128, max(8, connections // 2)))


class LimitedProtocol(H11Protocol):
    """One connection that knows since when it waits for a request and for its reader."""

    limits = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.waiting_since_s: float | None = None
        """None while a complete request is answered."""
        self._unsent = 0
        self._unsent_since_s: float | None = None

    @property
    def client_host(self) -> str:
        """Whom the connection belongs to."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, or refuse."""
        super().connection_made(transport)
        self.waiting_since_s = self.loop.time()
        _make_room(self, self.limits)

    def data_received(self, data: bytes) -> None:
        """Note whether the request is complete; a byte now and then does not extend its time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._note_request()

    def on_response_complete(self) -> None:
        """From here on it waits for the next request."""
        super().on_response_complete()
        self._note_request()

    def close_if_stalled(self, now_s: float) -> None:
        """Called every second."""
        if (
            self.waiting_since_s is not None
            and now_s - self.waiting_since_s > self.limits.request_s
        ):
            self.transport.abort()
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0:
            self._unsent_since_s = None
        elif self._unsent_since_s is None or unsent < self._unsent:
            self._unsent_since_s = now_s
        elif now_s - self._unsent_since_s > self.limits.stalled_write_s:
            self.transport.abort()
        self._unsent = unsent

    def _note_request(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self.waiting_since_s = None
        elif self.waiting_since_s is None:
            self.waiting_since_s = self.loop.time()


def limited_protocol(limits: Limits) -> type[LimitedProtocol]:
    """The protocol with these limits: uvicorn makes the objects itself."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


def close_stalled(connections: Iterable[object], now_s: float) -> None:
    """Close every connection whose time is over."""
    for connection in list(connections):
        if isinstance(connection, LimitedProtocol):
            connection.close_if_stalled(now_s)


def _make_room(new: LimitedProtocol, limits: Limits) -> None:
    waiting = [
        connection
        for connection in new.connections
        if isinstance(connection, LimitedProtocol)
        and connection is not new
        and connection.waiting_since_s is not None
        and not connection.transport.is_closing()
    ]
    if len(waiting) < limits.waiting and len(new.connections) <= limits.connections:
        return
    if not waiting:
        # Every connection is being answered: only the new one can be refused.
        new.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
            b"Retry-After: 5\r\nConnection: close\r\n\r\n"
        )
        new.transport.close()
        return
    # The oldest one of the client that holds most: a client that opens hundreds closes its own.
    held = Counter(connection.client_host for connection in waiting)
    most = max(held.values())
    oldest = min(
        (connection for connection in waiting if held[connection.client_host] == most),
        key=lambda connection: connection.waiting_since_s or 0.0,
    )
    oldest.transport.abort()

"""Run the dashboard as a server: socket, connection limits, and a clean shutdown on Ctrl-C.

uvicorn does not limit the time a request may take to arrive or a response to be read, and its `limit_concurrency`
rejects new clients instead of closing stalled ones. This module adds all three. Only this module uses uvicorn.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from torchyard.dashboard.app import Access, is_loopback, make_app, new_token, read_token
from torchyard.dashboard.feeds import MOST_WATCHERS, Feeds
from torchyard.dashboard.live_store import LiveStore
from torchyard.errors import NotAllowed, UsageError

_MOST_CONNECTIONS: Final = 1024
_RESERVED_DESCRIPTORS: Final = 64
"""Descriptors for the index, run folders, the event loop and standard streams."""
_FEWEST_CONNECTIONS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the number and duration of connections."""

    connections: int = _MOST_CONNECTIONS
    """Total. A new connection beyond it replaces a waiting one, or is closed if all are busy."""
    waiting: int = 128
    """Connections without a complete request: half-open, slow or idle."""
    request_s: float = 10.0
    """Time for a request to arrive completely, from the start of waiting for it."""
    stalled_write_s: float = 30.0
    """Time without progress of a client that reads a response."""
    keep_alive_s: int = 5


def default_limits() -> Limits:
    """Return limits that fit into the number of files that this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = _MOST_CONNECTIONS + _RESERVED_DESCRIPTORS
    if soft not in (resource.RLIM_INFINITY, -1) and soft < required:
        most = required if hard == resource.RLIM_INFINITY else min(required, hard)
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
    """A connection that tracks how long it waits for a request and for its client."""

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
        """None while a complete request is processed."""
        self._unsent = 0
        self._unsent_since_s: float | None = None

    @property
    def client_host(self) -> str:
        """Address of the client."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Enforce the limits for a new connection."""
        super().connection_made(transport)
        self.waiting_since_s = self.loop.time()
        _enforce_limits(self, self.limits)

    def data_received(self, data: bytes) -> None:
        """Check whether the request is complete; single bytes do not extend its time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._note_request()

    def on_response_complete(self) -> None:
        """Start waiting for the next request."""
        super().on_response_complete()
        self._note_request()

    def close_if_stalled(self, now_s: float) -> None:
        """Close the connection if it exceeded a time limit; called every second."""
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


def _enforce_limits(new: LimitedProtocol, limits: Limits) -> None:
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
        # All connections are processing requests: reject the new one.
        new.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
            b"Retry-After: 5\r\nConnection: close\r\n\r\n"
        )
        new.transport.close()
        return
    # The oldest one of the client with the most connections.
    counts = Counter(connection.client_host for connection in waiting)
    most = max(counts.values())
    oldest = min(
        (connection for connection in waiting if counts[connection.client_host] == most),
        key=lambda connection: connection.waiting_since_s or 0.0,
    )
    oldest.transport.abort()


_ACCEPTED_AT_ONCE: Final = 16
_QUEUE: Final = 512
"""Length of the kernel's queue of connections that are not accepted yet."""
_WATCH_S: Final = 1.0
"""Interval of the check for stalled connections."""
_SHUTDOWN_S: Final = 3
"""Time for responses in progress when the server stops."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address and token of a dashboard."""

    host: str
    port: int
    token: str | None = None
    token_is_new: bool = False
    """Created for this start, so it must be shown."""
    loopback: bool = True
    """Whether only processes of this machine can connect."""

    @property
    def url(self) -> str:
        """URL for a browser; with the token only if it is new."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        login = f"?token={self.token}" if self.token_is_new else ""
        return f"http://{name}:{self.port}/{login}"


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A bound socket, whose address is known before the server starts."""

    socket: socket.socket
    address: Address


@contextmanager
def listen(
    host: str, port: int, *, token_file: Path | None = None, no_token: bool = False
) -> Iterator[Listening]:
    """Bind a socket and choose the token: from the file, none on request, else a new one."""
    if no_token and token_file is not None:
        raise UsageError(
            "--no-token cannot be combined with --token-file", hint="remove one of them"
        )
    token = read_token(token_file) if token_file is not None else None
    bound = _bound(host, port)
    with bound:
        where, bound_port = bound.getsockname()[:2]
        loopback = is_loopback(where)
        if no_token and not loopback:
            raise UsageError(
                f"--no-token: {host} can be reached from other machines",
                why="everyone on the network could read the dashboard",
                hint="remove --no-token or --host",
            )
        is_new = token is None and not no_token
        yield Listening(
            socket=bound,
            address=Address(
                # A browser cannot use a wildcard address.
                host=socket.gethostname() if where in ("0.0.0.0", "::") else host,  # noqa: S104
                port=bound_port,
                token=new_token() if is_new else token,
                token_is_new=is_new,
                loopback=loopback,
            ),
        )


def access_for(address: Address) -> Access:
    """Return the access rules of this address."""
    return Access(
        token=address.token,
        # With the port, because a browser sends cookies to every port of a host.
        cookie_name=f"torchyard-{address.port}",
        # A token chosen by the user also allows other host names, for proxies and tunnels.
        any_host=address.token is not None and not (address.loopback and address.token_is_new),
    )


def serve_until_stopped(
    live_store: LiveStore,
    listening: Listening,
    *,
    ready: Callable[[], None],
    limits: Limits | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called when the server accepts requests."""
    with _signals_do_not_kill():
        dashboard_server(live_store, listening, ready=ready, limits=limits).run(
            sockets=[listening.socket]
        )


def dashboard_server(
    live_store: LiveStore,
    listening: Listening,
    *,
    ready: Callable[[], None],
    limits: Limits | None = None,
) -> uvicorn.Server:
    """Configure the server; it does not run yet."""
    limits = limits or default_limits()
    feeds = Feeds(most_watchers=min(MOST_WATCHERS, limits.connections // 2))
    config = uvicorn.Config(
        make_app(live_store, access=access_for(listening.address), feeds=feeds),
        # The access log would contain tokens.
        access_log=False,
        log_config=None,
        # uvicorn creates the instances.
        http=type("LimitedProtocol", (LimitedProtocol,), {"limits": limits}),
        ws="none",
        lifespan="off",
        server_header=False,
        # This many connections are accepted before the first one is counted.
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    return _Server(config, feeds, ready)


class _Server(uvicorn.Server):
    """A server that ends open event streams on shutdown."""

    def __init__(self, config: uvicorn.Config, feeds: Feeds, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._feeds = feeds
        self._ready = ready
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving and call `ready`."""
        await super().startup(sockets)
        if self.started:
            for bound in sockets or []:
                bound.listen(_QUEUE)
            self._watch = asyncio.create_task(self._close_stalled())
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open event streams, then shut down."""
        self._feeds.stop()
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()

    async def _close_stalled(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedProtocol):
                    connection.close_if_stalled(asyncio.get_running_loop().time())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End open event streams on a signal."""
        self._feeds.stop()
        super().handle_exit(sig, frame)


@contextmanager
def _signals_do_not_kill() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after it has stopped."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    if host.strip() in ("", "*"):  # the C library treats both as all networks
        raise UsageError(f"--host: {host!r} is not an address", hint="use 0.0.0.0 for all networks")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host: {host[:80]!r} is not an address",
            why=getattr(error, "strerror", None) or str(error),
            hint="use 127.0.0.1 for this machine only, 0.0.0.0 for all networks",
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except PermissionError as error:
        bound.close()
        raise NotAllowed(
            f"port {port} needs root privileges",
            why=str(error.strerror),
            hint="use a port above 1023",
        ) from error
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port}",
            why=error.strerror or str(error),
            hint="remove --port to use a free port",
        ) from error
    return bound

"""Run the dashboard as a server: socket, connection limits, and a clean shutdown on Ctrl-C.

uvicorn closes idle keep-alive connections and limits the size of request headers. It does not
limit the time a request may take to arrive or the time a client may take to read a response, and
its `limit_concurrency` rejects new clients instead of closing stalled ones. This module adds all
three, so that slow, idle or excess clients cannot keep others out. Only this module uses uvicorn.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

from torchyard.dashboard.access import Access, is_loopback, new_token, read_token
from torchyard.dashboard.app import make_app
from torchyard.dashboard.feeds import MOST_WATCHERS, Feeds
from torchyard.dashboard.live_store import Archive
from torchyard.errors import NotAllowed, UsageError

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


_ACCEPTED_AT_ONCE: Final = 16
_QUEUE: Final = 512
"""Connections that the kernel holds until they are accepted."""
_WATCH_S: Final = 1.0
"""How often stalled connections are looked for."""
_LAST_WORDS_S: Final = 3
"""How long answers may take that are under way when the server ends."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a dashboard is found."""

    host: str
    port: int
    token: str | None = None
    token_is_new: bool = False
    """Made for this start: nobody knows it unless it is shown."""
    loopback: bool = True
    """Only processes of this machine can connect."""

    @property
    def url(self) -> str:
        """For a browser; with the token only when it is new."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        login = f"?token={self.token}" if self.token_is_new else ""
        return f"http://{name}:{self.port}/{login}"


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A socket that is bound, so that its address is known before anything is answered."""

    socket: socket.socket
    address: Address


@contextmanager
def listen(
    host: str, port: int, *, token_file: Path | None = None, no_token: bool = False
) -> Iterator[Listening]:
    """Bind, and choose the token: that of the file, none on request, else a new one."""
    if no_token and token_file is not None:
        raise UsageError("--no-token and --token-file exclude each other", hint="give one of them")
    token = read_token(token_file) if token_file is not None else None
    bound = _bound(host, port)
    with bound:
        where, found_port = bound.getsockname()[:2]
        loopback = is_loopback(where)
        if no_token and not loopback:
            raise UsageError(
                f"--no-token: {host} can be reached from other machines",
                why="everybody on the network could read the dashboard",
                hint="leave --no-token out, or leave --host out",
            )
        is_new = token is None and not no_token
        yield Listening(
            socket=bound,
            address=Address(
                host=_name_of(host, where),
                port=found_port,
                token=new_token() if is_new else token,
                token_is_new=is_new,
                loopback=loopback,
            ),
        )


def access_for(address: Address) -> Access:
    """What requests to this address must show."""
    return Access(
        token=address.token,
        # By port, because a browser sends cookies to every port of a host.
        cookie_name=f"torchyard-{address.port}",
        # A token of the user's own is for other names, too: those of proxies and tunnels.
        any_host=address.token is not None and not (address.loopback and address.token_is_new),
    )


def answer_until_ended(
    archive: Archive,
    listening: Listening,
    *,
    ready: Callable[[], None],
    limits: Limits | None = None,
) -> None:
    """Answer until Ctrl-C or a signal to end; `ready` is called when answers come."""
    with _signals_do_not_kill():
        dashboard_server(archive, listening, ready=ready, limits=limits).run(
            sockets=[listening.socket]
        )


def dashboard_server(
    archive: Archive,
    listening: Listening,
    *,
    ready: Callable[[], None],
    limits: Limits | None = None,
) -> uvicorn.Server:
    """Configure the server; it does not run yet."""
    limits = limits or default_limits()
    feeds = Feeds(most_watchers=min(MOST_WATCHERS, limits.connections // 2))
    config = uvicorn.Config(
        make_app(archive, access=access_for(listening.address), feeds=feeds),
        # Its lines would hold tokens of addresses, and its own colours.
        access_log=False,
        log_config=None,
        http=limited_protocol(limits),
        ws="none",
        lifespan="off",
        server_header=False,
        # So many are accepted before the first of them is counted.
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    return _Server(config, feeds, ready)


class _Server(uvicorn.Server):
    """Ends open streams first, which would never end by themselves."""

    def __init__(self, config: uvicorn.Config, feeds: Feeds, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._feeds = feeds
        self._ready = ready
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when it listens."""
        await super().startup(sockets)
        if self.started:
            for bound in sockets or []:
                bound.listen(_QUEUE)
            self._watch = asyncio.create_task(self._close_stalled())
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close open streams, which would never end by themselves, and what is stalled."""
        self._feeds.stop()
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()

    async def _close_stalled(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            close_stalled(self.server_state.connections, asyncio.get_running_loop().time())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On a signal."""
        self._feeds.stop()
        super().handle_exit(sig, frame)


@contextmanager
def _signals_do_not_kill() -> Iterator[None]:
    """Uvicorn raises the signal that ended it once more, for whoever handled it before."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    if host.strip() in ("", "*"):  # the C library takes both for every network
        raise UsageError(f"--host: {host!r} is no address", hint="write 0.0.0.0 for every network")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host: {host[:80]!r} is no address",
            why=str(error),
            hint="127.0.0.1 for this machine only, 0.0.0.0 for every network",
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen(128)
    except PermissionError as error:
        bound.close()
        raise NotAllowed(
            f"port {port} needs more rights", why=str(error.strerror), hint="take one above 1023"
        ) from error
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port}",
            why=error.strerror or str(error),
            hint="leave --port out to take a free one",
        ) from error
    return bound


def _name_of(host: str, where: str) -> str:
    """What a browser can ask for: not "every address"."""
    return socket.gethostname() if where in ("0.0.0.0", "::") else host  # noqa: S104

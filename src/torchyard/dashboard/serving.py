"""The dashboard as a process that listens: socket, server, and a clean end on Ctrl-C.

Only this module and `connections` know uvicorn.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from torchyard.dashboard.access import Access, is_loopback, new_token, read_token
from torchyard.dashboard.app import make_app
from torchyard.dashboard.archive import Archive
from torchyard.dashboard.connections import Limits, close_stalled, default_limits, limited_protocol
from torchyard.dashboard.feeds import MOST_WATCHERS, Feeds
from torchyard.errors import NotAllowed, UsageError

__all__ = ["Address", "Listening", "access_for", "answer_until_ended", "dashboard_server", "listen"]

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

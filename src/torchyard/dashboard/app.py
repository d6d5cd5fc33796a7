"""The dashboard as a Starlette application: routes, responses, and access control before each page.

Everything is read-only. Ids are looked up in the index; no part of a request becomes a path.
Access control (host, token, method, response headers) is plain ASGI middleware, because it must
not buffer streams.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchyard.bench.report.formats import to_json
from torchyard.core.records import encode
from torchyard.dashboard import links, lists
from torchyard.dashboard.feeds import Feeds
from torchyard.dashboard.links import Links
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.pages import Pages, asset_kinds, asset_text
from torchyard.errors import NotAllowed, NothingToDo, TorchyardError, UsageError
from torchyard.files.safe_reading import open_regular_file
from torchyard.presentation.tables import finite
from torchyard.results.model import RunEntry
from torchyard.results.run_reader import read_run

SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 512
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_PORT: Final = re.compile(r":[0-9]{1,5}$")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Access rules of a dashboard."""

    token: str | None = None
    """None: requests to a loopback host name need no token."""
    cookie_name: str = "torchyard"
    any_host: bool = False
    """Whether host names other than loopback are accepted; needs a token."""

    @property
    def cookie_value(self) -> str:
        """The value of the cookie: an HMAC from which the token cannot be recovered."""
        key = (self.token or "").encode()
        return hmac.new(key, b"torchyard dashboard cookie", hashlib.sha256).hexdigest()

    def knows_host(self, host: str) -> bool:
        """Return whether requests with this host name are accepted."""
        if self.any_host and self.token is not None:
            return True
        return is_loopback(_PORT.sub("", host.strip()))

    def admits(self, *, bearer: str, cookies: Mapping[str, str]) -> bool:
        """Return whether a request with this `Authorization` header and these cookies is allowed."""
        if self.token is None:
            return True
        scheme, _, token = bearer.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(token.strip()):
            return True
        return _same(cookies.get(self.cookie_name, ""), self.cookie_value)

    def is_token(self, text: str) -> bool:
        """Return whether the text is the token; compares in constant time."""
        return self.token is not None and _same(text, self.token)


def is_loopback(host: str) -> bool:
    """Return whether the name or address is a loopback one."""
    name = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """Read a token from a file with one line."""
    try:
        with open_regular_file(path) as file:
            text = file.read(_LONGEST_TOKEN + 2).decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise _bad_token(path, "it is not text") from error
    except OSError as error:
        raise _bad_token(path, str(error.strerror or error)) from error
    if not _TOKEN.fullmatch(text):
        raise _bad_token(path, "it is not one line of printable ASCII")
    if not SHORTEST_TOKEN <= len(text) <= _LONGEST_TOKEN:
        raise _bad_token(
            path,
            f"a token must have {SHORTEST_TOKEN} to {_LONGEST_TOKEN} characters, not {len(text)}",
        )
    return text


def _bad_token(path: Path, why: str) -> UsageError:
    return UsageError(
        f"--token-file: {str(path)!r} contains no token",
        why=why,
        hint=f"create one: (umask 077; openssl rand -hex 32 > {path.name})",
    )


def _same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode("utf-8", "replace"), right.encode())


Refusal = Callable[[Request, TorchyardError, int], Response]
"""Creates the response to a rejected request, with this status."""

_DENY_ALL: Final = "default-src 'none'; frame-ancestors 'none'"
"""Policy of responses that are not pages; pages have their own."""
_HEADERS: Final = (
    ("Content-Security-Policy", _DENY_ALL),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("Cache-Control", "no-store"),
)
"""Default headers of every response."""
_COOKIE_AGE_S: Final = 30 * 24 * 3600


class AccessMiddleware:
    """Checks host, method and token before the application."""

    def __init__(self, app: ASGIApp, *, access: Access, refusal: Refusal) -> None:
        self._app = app
        self._access = access
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            # Other protocols (websockets) get no response: the server closes the connection.
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS:
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        app: ASGIApp = self._rejection(request) or self._app
        await app(scope, receive, send_with_headers)

    def _rejection(self, request: Request) -> Response | None:
        """Return a response that rejects or redirects the request; None to pass it on."""
        if not self._access.knows_host(request.headers.get("host", "")):
            unknown = UsageError(
                f"the host {request.headers.get('host', '')!r} is not this machine",
                why="another page may be using this name to read the dashboard (DNS rebinding)",
                hint="use http://127.0.0.1:PORT, or start with --token-file to allow any name",
            )
            return self._refusal(request, unknown, 400)
        if request.method not in ("GET", "HEAD"):
            refused = UsageError(
                f"{request.method} is not supported",
                why="the dashboard is read-only",
                hint="use GET",
            )
            answer = self._refusal(request, refused, 405)
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        if self._access.token is None:
            return None
        query = parse_qsl(request.url.query, keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens and self._access.is_token(tokens[-1]):
            return self._logged_in(request, [pair for pair in query if pair[0] != "token"])
        bearer = request.headers.get("authorization", "")
        if not tokens and self._access.admits(bearer=bearer, cookies=request.cookies):
            return None
        denied = NotAllowed(
            "the token is wrong" if tokens or bearer else "a token is required",
            why="other users of the machine or the network can connect to this address",
            hint="open the URL that `torchyard serve` printed, or add ?token=TOKEN to this one",
        )
        answer = self._refusal(request, denied, 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _logged_in(self, request: Request, query: list[tuple[str, str]]) -> Response:
        """Set the cookie and redirect to the same page without the token in its URL."""
        # Relative, so that it works behind a proxy that serves the dashboard below a path.
        page = request.url.path.rpartition("/")[2] or "./"
        answer = RedirectResponse(
            "./" + page.removeprefix("./") + (f"?{urlencode(query)}" if query else ""),
            status_code=303,
        )
        answer.set_cookie(
            self._access.cookie_name,
            self._access.cookie_value,
            max_age=_COOKIE_AGE_S,
            httponly=True,
            # Lax: links from other sites must work. The dashboard is read-only.
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer


SCHEMA: Final = 1
"""Version of the JSON objects; not incremented when keys are added."""
_OWN_POLICY: Final = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"


def make_app(live_store: LiveStore, *, access: Access, feeds: Feeds) -> Starlette:
    """Create the application; the caller stops the feeds."""
    handlers = _Handlers(live_store, feeds)
    pages: dict[str, Callable[[Request], Response]] = {
        "/": handlers.runs,
        "/run": handlers.run,
        "/workloads": handlers.workloads,
        "/history": handlers.history,
        "/compare": handlers.compare,
        "/live": handlers.live,
        "/assets/{name}": handlers.asset,
        "/api/runs": handlers.runs_data,
        "/api/run": handlers.run_data,
        "/api/workloads": handlers.workloads_data,
        "/api/history": handlers.history_data,
        "/api/compare": handlers.compare_data,
        "/api/live": handlers.live_data,
    }
    return Starlette(
        routes=[
            *(Route(path, answer, methods=["GET"]) for path, answer in pages.items()),
            Route("/events", handlers.events, methods=["GET"]),
        ],
        middleware=[Middleware(AccessMiddleware, access=access, refusal=handlers.error_response)],
        exception_handlers={
            TorchyardError: handlers.torchyard_error,
            HTTPException: handlers.http_error,
            Exception: handlers.internal_error,
        },
    )


class _Handlers:
    """Request handlers, one method per route."""

    def __init__(self, live_store: LiveStore, feeds: Feeds) -> None:
        self._live_store = live_store
        self._feeds = feeds
        self._pages = Pages(live_store)
        self._links = Links()

    def runs(self, request: Request) -> Response:
        return _page(self._pages.runs(self._links, links.runs_request(_query(request))))

    def run(self, request: Request) -> Response:
        entry = self._entry(request)
        before = self._live_store.before(entry)
        return _page(self._pages.run(self._links, entry, before=before))

    def workloads(self, request: Request) -> Response:
        return _page(self._pages.workloads(self._links, links.workloads_request(_query(request))))

    def history(self, request: Request) -> Response:
        return _page(self._pages.history(self._links, links.history_request(_query(request))))

    def history_data(self, request: Request) -> Response:
        series = links.history_request(_query(request))
        return _data(lists.history_data(lists.read_history(self._live_store, series)))

    def compare(self, request: Request) -> Response:
        parsed = links.compare_request(_query(request))
        return _page(self._pages.compare(self._links, parsed, self._sides(parsed)))

    def compare_data(self, request: Request) -> Response:
        sides = self._sides(links.compare_request(_query(request)))
        if sides is None:
            raise UsageError("two runs are required", hint="use before=ID and after=ID")
        return _data(lists.compared_data(lists.compare_chosen(*sides)))

    def live(self, request: Request) -> Response:
        links.plain_request(_query(request))
        return _page(self._pages.live(self._links))

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = asset_text(name)
        if not text:
            raise _missing(f"there is no file {name!r}")
        headers = {"Cache-Control": _CACHE_FOREVER}
        return Response(text, media_type=asset_kinds()[name], headers=headers)

    def runs_data(self, request: Request) -> Response:
        return _data(lists.runs_data(self._live_store, links.runs_request(_query(request))))

    def run_data(self, request: Request) -> Response:
        entry = self._entry(request)
        if entry.damage:
            return _data({"run": lists.run_record(entry)})
        return Response(to_json(read_run(Path(entry.folder))), media_type="application/json")

    def workloads_data(self, request: Request) -> Response:
        return _data(
            lists.workloads_data(self._live_store, links.workloads_request(_query(request)))
        )

    def live_data(self, request: Request) -> Response:
        links.plain_request(_query(request))
        return _data({"runs": [lists.run_record(entry) for entry in self._live_store.running()]})

    async def events(self, request: Request) -> Response:
        from anyio.to_thread import run_sync

        entry = await run_sync(self._entry, request)
        if self._feeds.is_full:
            answer = self.error_response(
                request, UsageError("too many open streams", hint="try again later"), 503
            )
            answer.headers["Retry-After"] = "30"
            return answer
        # Disables buffering in nginx, which would delay events.
        kind, headers = "text/event-stream", {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=kind, headers=headers)
        stream = self._feeds.watch(Path(entry.folder))
        return StreamingResponse(stream, media_type=kind, headers=headers)

    def torchyard_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, TorchyardError):
            raise error
        status = 400 if isinstance(error, UsageError) else 500
        return self.error_response(
            request, error, 404 if isinstance(error, NothingToDo) else status
        )

    def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:  # noqa: PLR2004
            return self.error_response(request, _missing("there is no such page"), 404)
        return self.error_response(request, UsageError(str(error)), status)

    def internal_error(self, request: Request, error: Exception) -> Response:
        reported = TorchyardError(
            f"internal error: {type(error).__name__}",
            why="see the output of `torchyard serve` for details",
            hint="please report this bug",
        )
        return self.error_response(request, reported, 500)

    def _entry(self, request: Request) -> RunEntry:
        return self._run(links.run_request(_query(request)))

    def _sides(self, parsed: links.CompareRequest) -> tuple[lists.Chosen, lists.Chosen] | None:
        if not parsed.before or not parsed.after:
            return None
        return (
            lists.Chosen(run=self._run(parsed.before), variant=parsed.before_variant),
            lists.Chosen(run=self._run(parsed.after), variant=parsed.after_variant),
        )

    def _run(self, name: str) -> RunEntry:
        entry = self._live_store.run(name)
        if entry is None:
            raise _missing(f"there is no run {name!r}")
        return entry

    def error_response(self, request: Request, error: TorchyardError, status: int) -> Response:
        if request.url.path.startswith("/api/"):
            record = {
                "kind": type(error).__name__,
                "what": error.what,
                "why": error.why,
                "hint": error.hint,
            }
            return _data({"error": record}, status=status)
        title = _TITLES.get(status, "Something went wrong")
        return _page(self._pages.message(self._links, title, error), status=status)


_TITLES: Final = {
    400: "Invalid request",
    401: "A token is required",
    404: "Not found",
    405: "Method not supported",
    503: "Too many connections",
}


def _missing(what: str) -> NothingToDo:
    return NothingToDo(what, hint="start from the list of runs")


def _query(request: Request) -> list[tuple[str, str]]:
    return request.query_params.multi_items()


def _page(text: str, *, status: int = 200) -> Response:
    answer = HTMLResponse(text.encode("utf-8", "replace"), status_code=status)
    # A page contains its own policy; the header repeats it and forbids frames, which only a header
    # can.
    own = _OWN_POLICY.search(text)
    if own is not None:
        policy = own[1].replace("&#39;", "'")
        answer.headers["Content-Security-Policy"] = f"{policy}; frame-ancestors 'none'"
    return answer


def _data(record: dict[str, Any], *, status: int = 200) -> Response:
    text = json.dumps(finite(encode({"schema": SCHEMA, **record})), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")

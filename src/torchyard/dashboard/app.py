"""The dashboard as a Starlette application: routes, responses, and access control before each page.

Everything is read-only. Ids are looked up in the index; no part of a request becomes a path.
Access control (host, token, method, response headers) is plain ASGI middleware, because it must
not buffer streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchyard.bench.report.formats import to_json
from torchyard.core.records import encode
from torchyard.dashboard.access import Access
from torchyard.dashboard.assets import asset_kinds, asset_text
from torchyard.dashboard.feeds import Feeds
from torchyard.dashboard.links import ServedLinks
from torchyard.dashboard.lists import run_record, runs_data, workloads_data
from torchyard.dashboard.live_store import Archive
from torchyard.dashboard.pages import Pages
from torchyard.dashboard.query_strings import (
    CompareRequest,
    compare_request,
    history_request,
    plain_request,
    run_request,
    runs_request,
    workloads_request,
)
from torchyard.dashboard.views import (
    Chosen,
    compare_chosen,
    compared_data,
    history_data,
    read_history,
)
from torchyard.errors import NotAllowed, NothingToDo, TorchyardError, UsageError
from torchyard.results.compare.report import finite
from torchyard.results.model import RunEntry
from torchyard.results.run_reader import read_run

Refusal = Callable[[Request, TorchyardError, int], Response]
"""Makes the answer to a request that does not come in, with this status."""

_NOTHING: Final = "default-src 'none'; frame-ancestors 'none'"
"""For answers that are no pages; pages say what they need."""
_HEADERS: Final = (
    ("Content-Security-Policy", _NOTHING),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("Cache-Control", "no-store"),
)
"""Put on every answer that does not say otherwise itself."""
_COOKIE_AGE_S: Final = 30 * 24 * 3600


class Gate:
    """Wraps the app."""

    def __init__(self, app: ASGIApp, *, access: Access, refusal: Refusal) -> None:
        self._app = app
        self._access = access
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            # Anything else (websockets) gets no answer: the server closes it.
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS:
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        app: ASGIApp = self._answer(request) or self._app
        await app(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """What is said at the gate; None lets the request in."""
        if not self._access.knows_host(request.headers.get("host", "")):
            return self._refusal(request, _unknown_host(request.headers), 400)
        if request.method not in ("GET", "HEAD"):
            refused = UsageError(
                f"{request.method} is not answered", why="the dashboard only shows", hint="use GET"
            )
            answer = self._refusal(request, refused, 405)
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        if self._access.token is None:
            return None
        query = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and self._access.is_token(given[-1]):
            return self._logged_in(request, [pair for pair in query if pair[0] != "token"])
        bearer = request.headers.get("authorization", "")
        if not given and self._access.admits(bearer=bearer, cookies=request.cookies):
            return None
        answer = self._refusal(request, _no_token(wrong=bool(given or bearer)), 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _logged_in(self, request: Request, query: list[tuple[str, str]]) -> Response:
        """The same page without the token in its address, which is kept and seen in many places."""
        # Relative, so that it holds behind a proxy that serves the dashboard below a path.
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
            # Lax: a link in a message must still log in. Nothing here changes anything.
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer


def _unknown_host(headers: Headers) -> TorchyardError:
    return UsageError(
        f"the host {headers.get('host', '')!r} is not this machine",
        why="another page may be using this name to read the dashboard (DNS rebinding)",
        hint="use http://127.0.0.1:PORT, or start with --token-file to allow any name",
    )


def _no_token(*, wrong: bool) -> TorchyardError:
    return NotAllowed(
        "the token is wrong" if wrong else "a token is needed",
        why="other users of the machine or the network can connect to this address",
        hint="open the address that `torchyard serve` printed, or add ?token=TOKEN to this one",
    )


SCHEMA: Final = 1
"""Version of the JSON objects; added keys do not raise it."""
_OWN_POLICY: Final = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')
_FOR_GOOD: Final = "public, max-age=31536000, immutable"


def make_app(archive: Archive, *, access: Access, feeds: Feeds) -> Starlette:
    """The application; whoever makes it also ends the feeds."""
    answers = _Answers(archive, feeds)
    pages: dict[str, Callable[[Request], Response]] = {
        "/": answers.runs,
        "/run": answers.run,
        "/workloads": answers.workloads,
        "/history": answers.history,
        "/compare": answers.compare,
        "/live": answers.live,
        "/assets/{name}": answers.asset,
        "/api/runs": answers.runs_data,
        "/api/run": answers.run_data,
        "/api/workloads": answers.workloads_data,
        "/api/history": answers.history_data,
        "/api/compare": answers.compare_data,
        "/api/live": answers.live_data,
    }
    return Starlette(
        routes=[
            *(Route(path, answer, methods=["GET"]) for path, answer in pages.items()),
            Route("/events", answers.events, methods=["GET"]),
        ],
        middleware=[Middleware(Gate, access=access, refusal=answers.refusal)],
        exception_handlers={
            TorchyardError: answers.our_error,
            HTTPException: answers.http_error,
            Exception: answers.mistake,
        },
    )


class _Answers:
    """One method for each address."""

    def __init__(self, archive: Archive, feeds: Feeds) -> None:
        self._archive = archive
        self._feeds = feeds
        self._pages = Pages(archive)
        self._links = ServedLinks()

    def runs(self, request: Request) -> Response:
        return _page(self._pages.runs(self._links, runs_request(_query(request))))

    def run(self, request: Request) -> Response:
        entry = self._entry(request)
        before = self._archive.before(entry)
        return _page(self._pages.run(self._links, entry, before=before))

    def workloads(self, request: Request) -> Response:
        return _page(self._pages.workloads(self._links, workloads_request(_query(request))))

    def history(self, request: Request) -> Response:
        return _page(self._pages.history(self._links, history_request(_query(request))))

    def history_data(self, request: Request) -> Response:
        series = history_request(_query(request))
        return _data(history_data(read_history(self._archive, series)))

    def compare(self, request: Request) -> Response:
        wanted = compare_request(_query(request))
        return _page(self._pages.compare(self._links, wanted, self._sides(wanted)))

    def compare_data(self, request: Request) -> Response:
        sides = self._sides(compare_request(_query(request)))
        if sides is None:
            raise UsageError("two runs are needed", hint="give before=ID and after=ID")
        return _data(compared_data(compare_chosen(*sides)))

    def live(self, request: Request) -> Response:
        plain_request(_query(request))
        return _page(self._pages.live(self._links))

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = asset_text(name)
        if text is None:
            raise _missing(f"there is no file {name!r}")
        headers = {"Cache-Control": _FOR_GOOD}
        return Response(text, media_type=asset_kinds()[name], headers=headers)

    def runs_data(self, request: Request) -> Response:
        return _data(runs_data(self._archive, runs_request(_query(request))))

    def run_data(self, request: Request) -> Response:
        entry = self._entry(request)
        if entry.damage:
            return _data({"run": run_record(entry)})
        return Response(to_json(read_run(Path(entry.folder))), media_type="application/json")

    def workloads_data(self, request: Request) -> Response:
        return _data(workloads_data(self._archive, workloads_request(_query(request))))

    def live_data(self, request: Request) -> Response:
        plain_request(_query(request))
        return _data({"runs": [run_record(entry) for entry in self._archive.going()]})

    async def events(self, request: Request) -> Response:
        from anyio.to_thread import run_sync

        entry = await run_sync(self._entry, request)
        if self._feeds.is_full:
            answer = self._say(request, UsageError("too many are watching", hint="try later"), 503)
            answer.headers["Retry-After"] = "30"
            return answer
        # For nginx: an event that waits in a buffer is no live progress.
        kind, headers = "text/event-stream", {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=kind, headers=headers)
        stream = self._feeds.watch(Path(entry.folder))
        return StreamingResponse(stream, media_type=kind, headers=headers)

    def refusal(self, request: Request, error: TorchyardError, status: int) -> Response:
        return self._say(request, error, status)

    def our_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, TorchyardError):
            raise error
        status = 400 if isinstance(error, UsageError) else 500
        return self._say(request, error, 404 if isinstance(error, NothingToDo) else status)

    def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:  # noqa: PLR2004
            return self._say(request, _missing("there is no such page"), 404)
        return self._say(request, UsageError(str(error)), status)

    def mistake(self, request: Request, error: Exception) -> Response:
        ours = TorchyardError(
            f"Torchyard made a mistake: {type(error).__name__}",
            why="this is not your fault; what `torchyard serve` printed says more",
            hint="please report it",
        )
        return self._say(request, ours, 500)

    def _entry(self, request: Request) -> RunEntry:
        return self._run(run_request(_query(request)))

    def _sides(self, wanted: CompareRequest) -> tuple[Chosen, Chosen] | None:
        if not wanted.before or not wanted.after:
            return None
        return (
            Chosen(run=self._run(wanted.before), variant=wanted.before_variant),
            Chosen(run=self._run(wanted.after), variant=wanted.after_variant),
        )

    def _run(self, name: str) -> RunEntry:
        entry = self._archive.run(name)
        if entry is None:
            raise _missing(f"there is no run {name!r}")
        return entry

    def _say(self, request: Request, error: TorchyardError, status: int) -> Response:
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
    400: "This was not understood",
    401: "A token is needed",
    404: "Not found",
    405: "The dashboard only shows",
    503: "Too many at once",
}


def _missing(what: str) -> NothingToDo:
    return NothingToDo(what, hint="start from the list of runs")


def _query(request: Request) -> list[tuple[str, str]]:
    return request.query_params.multi_items()


def _page(text: str, *, status: int = 200) -> Response:
    answer = HTMLResponse(text.encode("utf-8", "replace"), status_code=status)
    # A page says itself what it needs; the header repeats it, and forbids frames, which only a
    # header can.
    own = _OWN_POLICY.search(text)
    if own is not None:
        policy = own[1].replace("&#39;", "'")
        answer.headers["Content-Security-Policy"] = f"{policy}; frame-ancestors 'none'"
    return answer


def _data(record: dict[str, Any], *, status: int = 200) -> Response:
    text = json.dumps(finite(encode({"schema": SCHEMA, **record})), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")

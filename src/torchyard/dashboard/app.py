"""The dashboard as a Starlette application: addresses, answers and their status.

Everything is read-only. Ids are looked up in the index; nothing of a request becomes a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from torchyard.core.records import encode
from torchyard.core.stored import RunEntry
from torchyard.dashboard.access import Access
from torchyard.dashboard.archive import Archive
from torchyard.dashboard.assets import asset_kinds, asset_text
from torchyard.dashboard.compare_view import Chosen, compare_chosen, compared_data
from torchyard.dashboard.feeds import Feeds
from torchyard.dashboard.gate import Gate
from torchyard.dashboard.history_view import history_data, read_history
from torchyard.dashboard.links import ServedLinks
from torchyard.dashboard.pages import Pages
from torchyard.dashboard.queries import (
    CompareRequest,
    compare_request,
    history_request,
    plain_request,
    run_request,
    runs_request,
    workloads_request,
)
from torchyard.dashboard.run_list import run_record, runs_data
from torchyard.dashboard.workload_list import workloads_data
from torchyard.errors import NothingToDo, TorchyardError, UsageError
from torchyard.reports.compare_data import finite
from torchyard.reports.json_report import to_json
from torchyard.results.run_reader import read_run

__all__ = ["SCHEMA", "make_app"]

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

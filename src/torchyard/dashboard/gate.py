"""What stands before every page: the host, the token, the method, and headers on every answer.

A plain ASGI wrapper, because it must not hold back streams. Knows no page; the app gives it a way
to say no in its own look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchyard.dashboard.access import Access
from torchyard.errors import NotAllowed, TorchyardError, UsageError

__all__ = ["Gate", "Refusal"]

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

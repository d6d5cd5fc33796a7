"""Open an address over HTTP: proxies, logins, certificates, redirects. Writes no files.

Logins go to the host they are for and to no other: urllib would carry them along a redirect.
"""

from __future__ import annotations

import base64
import netrc
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard import __version__
from torchyard.build.sources.addresses import without_credentials
from torchyard.errors import StepFailed, TorchyardError

__all__ = ["HttpReply", "TransferSettings", "is_passing", "open_address", "refused"]

_SILENCE_S = 60.0
"""A server that sends nothing for this long is given up."""
_HINTS = {
    401: "put the login into ~/.netrc or into pip's configuration",
    403: "put the login into ~/.netrc or into pip's configuration",
    404: "check the address: the server has no such file",
    407: "the proxy wants a login: put it into the http_proxy and https_proxy variables",
    410: "check the address: the file was removed",
}


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """How to reach servers, beyond what the environment says."""

    ca_file: str = ""
    trusted_hosts: tuple[str, ...] = ()
    """`host` or `host:port` whose certificate is not checked, as pip has it."""
    proxy: str = ""


class HttpReply(Protocol):
    """What is used of http.client.HTTPResponse."""

    status: int
    headers: HTTPMessage
    url: str

    def read(self, amount: int = ..., /) -> bytes:
        """Some bytes; none at the end."""

    def close(self) -> None:
        """Give the connection back."""


def open_address(
    address: str,
    *,
    headers: Mapping[str, str] | None = None,
    settings: TransferSettings | None = None,
) -> HttpReply:
    """Ask for an address; HTTPError, URLError, OSError and HTTPException are the caller's."""
    settings = settings or TransferSettings()
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
    request = urllib.request.Request(bare)  # noqa: S310 - callers give http and https only
    request.add_header("User-Agent", f"torchyard/{__version__}")
    # A server that compresses on the way makes sizes and ranges meaningless.
    request.add_header("Accept-Encoding", "identity")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    login = _login(address)
    if login:
        # Unredirected headers are not sent to where a redirect leads.
        request.add_unredirected_header("Authorization", login)
    reply: HttpReply = _opener(parts.hostname or "", host, settings).open(
        request, timeout=_SILENCE_S
    )
    return reply


def refused(address: str, error: Exception) -> TorchyardError:
    """The error for a transfer that failed, with nothing secret in it."""
    shown = without_credentials(address)
    if isinstance(error, urllib.error.HTTPError):
        hint = _HINTS.get(error.code, "try again later: the server has trouble")
        error.close()
        return StepFailed(
            f"cannot fetch {shown}",
            why=f"the server answers {error.code} {error.reason}",
            hint=hint,
        )
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    why = without_credentials(str(reason)) or type(error).__name__
    return StepFailed(
        f"cannot fetch {shown}",
        why=why,
        hint="check the network, and the http_proxy, https_proxy and no_proxy variables",
    )


def is_passing(error: Exception) -> bool:
    """Whether asking again may help: broken connections and overloaded servers."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 425, 429, 500, 502, 503, 504)
    if isinstance(error, urllib.error.URLError):
        return not isinstance(error.reason, ssl.SSLCertVerificationError)
    return isinstance(error, (OSError, HTTPException))


def _opener(
    name: str, host_and_port: str, settings: TransferSettings
) -> urllib.request.OpenerDirector:
    ca_file = settings.ca_file or os.environ.get("REQUESTS_CA_BUNDLE") or None
    context = ssl.create_default_context(cafile=ca_file)
    if name in settings.trusted_hosts or host_and_port in settings.trusted_hosts:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPSHandler(context=context),
        _Redirects(),
    ]
    if settings.proxy:
        handlers.append(
            urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy})
        )
    return urllib.request.build_opener(*handlers)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed over HTTP only, and with the login only on the same server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            return None
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        login = req.unredirected_hdrs.get("Authorization")
        if follow is not None and login and _server(newurl) == _server(req.full_url):
            follow.add_unredirected_header("Authorization", login)
        return follow


def _server(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _login(address: str) -> str:
    """An Authorization header's value, from the address or from ~/.netrc."""
    parts = urlsplit(address)
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    else:
        found = _from_netrc(parts.hostname or "")
        if found is None:
            return ""
        user, password = found
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _from_netrc(host: str) -> tuple[str, str] | None:
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    # A file that others can read, or that is damaged, is as good as none.
    with suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc(path).authenticators(host)
        if found:
            return found[0], found[2] or ""
    return None

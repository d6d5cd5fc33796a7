"""Decide who may read the dashboard, from request headers alone. No I/O except reading a token.

A loopback address keeps other machines out but not other users of this one, so a token is
required there too unless it is switched off. A web page in a browser on this machine can make its
own name resolve to this address (DNS rebinding), but its requests still carry that name as their
host: on a loopback address only loopback names are accepted. A token chosen by the user is also
meant for proxies and tunnels with other names; its cookie is bound to one host, so the name is
not checked.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError
from torchyard.files.safe_reading import open_regular_file

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
        scheme, _, given = bearer.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
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

"""Addresses of sources: which are local, and what of them may be shown or kept.

Passwords and tokens belong to git's credential helper, ~/.netrc or pip's configuration. In a
recipe they would travel into plans, exported scripts, logs and records, so they are refused there.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard.errors import UsageError

__all__ = ["checked_address", "file_name_of", "local_path_of", "without_credentials"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_INSIDE_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]*@")


def checked_address(address: str, key: str, *, mend: str) -> str:
    """The address as it is used; a plain path becomes absolute, credentials are an error."""
    if not address.strip() or address.startswith("-") or any(map(_is_control, address)):
        raise UsageError(f"{key} is no address", hint="give a URL or a path")
    if not _SCHEME.match(address):
        is_path = address.startswith(("/", "./", "../", "~")) or address in (".", "..")
        return str(Path(address).expanduser().absolute()) if is_path else address
    parts = urlsplit(address)
    secret = parts.username if parts.scheme in ("http", "https", "ftp") else parts.password
    if secret is not None:
        raise UsageError(
            f"{key} holds a user name or a password ({without_credentials(address)})",
            why="recipes, plans and records are shared, and secrets in them would be, too",
            hint=mend,
        )
    return address


def local_path_of(address: str) -> Path | None:
    """The file or folder an address stands for on this machine; None for a remote one."""
    if not _SCHEME.match(address):
        return Path(address)
    parts = urlsplit(address)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None


def file_name_of(address: str) -> str:
    """The last part of an address, made safe as a file's name."""
    path = urlsplit(address).path if _SCHEME.match(address) else address
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", unquote(path).rstrip("/").rpartition("/")[2])
    return name.lstrip(".-")[-100:] or "archive"


def without_credentials(text: str) -> str:
    """An address, or a message with addresses in it, as it may be shown and kept.

    The query of a lone address is dropped as well: signed links carry their token there.
    """
    text = _INSIDE_TEXT.sub(r"\1", text)
    if not _SCHEME.match(text) or re.search(r"\s", text):
        return re.sub(r"\?[^\s'\"<>]*", "?...", text)
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _is_control(character: str) -> bool:
    return ord(character) < ord(" ") or character == "\x7f"

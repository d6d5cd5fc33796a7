"""Download one file over HTTP: complete and with the right checksum under its name, or not at all.

Partial data waits in `NAME.part`. A download is resumed only when the server confirms by its
validator (ETag or Last-Modified) that the file is still the same, and a checksum is there to prove
it. Proxies, logins, certificates and redirects are handled here; a login is sent only to the host
it is for, because urllib would carry it along a redirect.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import netrc
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, IncompleteRead
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard import __version__
from torchyard.builds.sources.fetch_plan import (
    check_sha256,
    local_path_of,
    sha256_of,
    without_credentials,
)
from torchyard.errors import StepFailed, TorchyardError
from torchyard.files.safe_writing import write_failed

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


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WriteFailed(Exception):
    """Our disk, and not the server, ended the transfer: no reason to ask again."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PartialFile:
    """`NAME.part`, and `NAME.part.json` that says what it is a part of."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".part")
        self.name = path.name
        self._note = path.with_name(path.name + ".part.json")

    def beginning(self, address: str) -> tuple[int, str]:
        """How much of `address` is here, and its validator; 0 when it cannot be gone on with."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            size_bytes = self.path.stat().st_size
        except (OSError, ValueError):
            return 0, ""
        if not isinstance(note, dict) or note.get("address") != without_credentials(address):
            return 0, ""
        validator = note.get("validator")
        return (size_bytes, validator) if isinstance(validator, str) and validator else (0, "")

    def remember(self, address: str, validator: str) -> None:
        """Note what the bytes that come now belong to."""
        text = json.dumps({"address": without_credentials(address), "validator": validator})
        try:
            self._note.write_text(text, encoding="utf-8")
        except OSError as error:
            raise WriteFailed(error) from error

    def check_room(self, more_bytes: int) -> None:
        """Say that the disk is too small before an hour of downloading, not after."""
        free = shutil.disk_usage(self.path.parent).free
        if more_bytes > free:
            reason = f"{more_bytes:,} bytes are needed, {free:,} are free"
            raise WriteFailed(OSError(errno.ENOSPC, reason))

    @contextmanager
    def opened(self, *, keep: int) -> Iterator[int]:
        """A descriptor behind the first `keep` bytes; the rest is cut off."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise WriteFailed(error) from error
        try:
            os.ftruncate(descriptor, keep)
            os.lseek(descriptor, keep, os.SEEK_SET)
            yield descriptor
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Remove it: nothing of it may be used."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def arrive(self, path: Path) -> None:
        """Give it its name."""
        self.path.replace(path)
        self._note.unlink(missing_ok=True)

    def no_room(self, error: OSError) -> TorchyardError:
        """The error for a disk that refuses; the part is removed, it only takes space."""
        self.forget()
        if error.errno not in _FULL:
            return write_failed(self.path, error, kept="what was there before")
        return StepFailed(
            f"the disk that holds {self.path.parent} is full",
            why=f"{error.strerror or error}; the half download of {self.name} was removed",
            hint="free some space, or set TORCHYARD_HOME to a folder on another disk",
        )


def write_all(descriptor: int, chunk: bytes) -> None:
    """All of a chunk; an empty one, the last, waits for the disk."""
    try:
        if not chunk:
            os.fsync(descriptor)
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]
    except OSError as error:
        raise WriteFailed(error) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Two builds that want the same file wait for each other; the second finds it finished."""
    lock = path.with_name(path.name + ".part.lock")
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_failed(path, error, kept="what was there before") from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Whoever held it removed it at the end, and a third one may have made a new one.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                break
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


_CHUNK_BYTES = 256 * 1024
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.25
_SAY_EVERY_S = 5.0
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416

Progress = Callable[[str], None]


class _CutOff(HTTPException):
    """The server ended early, or sent something else than was asked for."""


def download(
    address: str,
    path: Path,
    *,
    sha256: str,
    progress: Progress,
    settings: TransferSettings | None = None,
) -> None:
    """Fetch `address` to `path`. Without a checksum nothing of an earlier attempt is used."""
    settings = settings or TransferSettings()
    part = PartialFile(path)
    with alone(path):
        if sha256 and path.is_file() and sha256_of(path) == sha256:
            progress(f"{path.name} is here already")
            return
        path.unlink(missing_ok=True)
        if not sha256:
            part.forget()
        resumed = _fill(part, address, progress, settings)
        if resumed and sha256_of(part.path) != sha256:
            # The server may have put another file there between the two halves.
            part.forget()
            _fill(part, address, progress, settings)
        if sha256:
            _prove(part, address, sha256)
        part.arrive(path)


def _fill(part: PartialFile, address: str, progress: Progress, settings: TransferSettings) -> bool:
    """Bring the whole file into `part`; True when a beginning that was there was kept."""
    try:
        local = local_path_of(address)
        if local is not None:
            _copy(local, part)
            return False
        return _receive_patiently(part, address, progress, settings)
    except WriteFailed as error:
        raise part.no_room(error.error) from error


def _prove(part: PartialFile, address: str, sha256: str) -> None:
    name = f"{part.name} from {without_credentials(address)}"
    mend = "compare the recipe's sha256 with the publisher's; if it is right, fetch again"
    try:
        check_sha256(part.path, sha256, name=name, mend=mend)
    except StepFailed:
        part.forget()
        raise


def _copy(local: Path, part: PartialFile) -> None:
    part.forget()
    try:
        source = local.open("rb")
    except OSError as error:
        raise StepFailed(
            f"cannot read {local}",
            why=error.strerror or str(error),
            hint="correct the path in the recipe",
        ) from error
    with source, part.opened(keep=0) as target:
        while chunk := source.read(_CHUNK_BYTES):
            write_all(target, chunk)
        write_all(target, b"")


def _receive_patiently(
    part: PartialFile, address: str, progress: Progress, settings: TransferSettings
) -> bool:
    """Several attempts, each going on where the one before ended, if that is safe."""
    resumed = False
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            resumed = _receive(part, address, progress, settings) or resumed
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError) and error.code == _RANGE_NOT_SATISFIABLE:
                # What is here is the whole file, or more than that: a range from its end is empty.
                part.forget()
            elif not is_passing(error):
                raise _explained(part, address, error) from error
            if attempt == _ATTEMPTS:
                raise _explained(part, address, error) from error
            if isinstance(error, HTTPError):
                error.close()
            progress(f"{part.name}: {without_credentials(str(error))}; trying again")
            time.sleep(_FIRST_PAUSE_S * 2**attempt)
        else:
            break
    return resumed


def _receive(
    part: PartialFile, address: str, progress: Progress, settings: TransferSettings
) -> bool:
    """One request; True when it went on with what was there."""
    have, validator = part.beginning(address)
    headers = {"Range": f"bytes={have}-", "If-Range": validator} if have else {}
    reply = open_address(address, headers=headers, settings=settings)
    try:
        resumed = reply.status == _PARTIAL_CONTENT
        if resumed and not str(reply.headers.get("Content-Range")).startswith(f"bytes {have}-"):
            part.forget()
            raise _CutOff("the server sent another part of the file than was asked for")
        start = have if resumed else 0
        length = reply.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        if not resumed:
            part.forget()
        part.check_room((total or 0) - start)
        part.remember(address, _validator(reply))
        got = _pour(reply, part, start, total, progress)
    finally:
        reply.close()
    if total is not None and got != total:
        raise _CutOff(f"the transfer ended after {got:,} of {total:,} bytes")
    return resumed


def _validator(reply: HttpReply) -> str:
    """A strong ETag, or a date; a weak ETag promises nothing about bytes."""
    tag = reply.headers.get("ETag", "")
    return tag if tag.startswith('"') else reply.headers.get("Last-Modified", "")


def _pour(
    reply: HttpReply, part: PartialFile, start: int, total: int | None, progress: Progress
) -> int:
    got, said_s = start, time.monotonic()
    with part.opened(keep=start) as target:
        while True:
            try:
                chunk = reply.read(_CHUNK_BYTES)
            except IncompleteRead as error:
                write_all(target, error.partial)
                got += len(error.partial)
                raise _CutOff(f"the transfer ended after {got:,} bytes") from error
            write_all(target, chunk)
            if not chunk:
                return got
            got += len(chunk)
            if time.monotonic() - said_s > _SAY_EVERY_S:
                said_s = time.monotonic()
                of = f" of {total / 1e6:.1f}" if total else ""
                progress(f"{part.name}: {got / 1e6:.1f}{of} MB")


def _explained(part: PartialFile, address: str, error: Exception) -> TorchyardError:
    if not isinstance(error, _CutOff):
        return refused(address, error)
    return StepFailed(
        f"{without_credentials(address)} did not arrive whole",
        why=str(error),
        hint=f"fetch again; what has arrived is {part.path} and is never used as it is",
    )

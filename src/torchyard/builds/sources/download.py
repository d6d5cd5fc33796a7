"""Download a file over HTTP; it gets its name only when it is complete and its checksum matches.

Partial data is kept in `NAME.part`. A download is resumed only if the server confirms with its
validator (ETag or Last-Modified) that the file is unchanged and a checksum is known. Proxies,
logins, certificates and redirects are handled here; a login is sent only to its own host, whereas
urllib would forward it along redirects.
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
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard import __version__
from torchyard.builds.build_folders import open_lock_file
from torchyard.builds.sources.fetch_plan import (
    check_sha256,
    local_path,
    sha256_of,
    without_credentials,
)
from torchyard.errors import StepFailed, TorchyardError
from torchyard.files.safe_writing import write_error

_TIMEOUT_S = 60.0
"""Abort if the server sends nothing for this long."""
_HINTS = {
    401: "add the login to ~/.netrc or to pip's configuration",
    403: "add the login to ~/.netrc or to pip's configuration",
    404: "check the URL: the server has no such file",
    407: "the proxy requires a login: add it to the http_proxy and https_proxy variables",
    410: "check the URL: the file was removed",
}


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """Connection settings in addition to those of the environment."""

    ca_file: str = ""
    trusted_hosts: tuple[str, ...] = ()
    """`host` or `host:port` whose certificate is not checked, as in pip."""
    proxy: str = ""


def open_address(
    address: str,
    *,
    headers: Mapping[str, str] | None = None,
    settings: TransferSettings | None = None,
) -> HTTPResponse:
    """Request a URL; raises HTTPError, URLError, OSError or HTTPException."""
    settings = settings or TransferSettings()
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
    request = urllib.request.Request(bare)  # noqa: S310 - callers pass http and https only
    request.add_header("User-Agent", f"torchyard/{__version__}")
    # With transparent compression, sizes and ranges would be meaningless.
    request.add_header("Accept-Encoding", "identity")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    login = _login(address)
    if login:
        # Unredirected headers are not sent to the target of a redirect.
        request.add_unredirected_header("Authorization", login)
    reply: HTTPResponse = _opener(parts.hostname or "", host, settings).open(
        request, timeout=_TIMEOUT_S
    )
    return reply


class _Incomplete(HTTPException):
    """The server closed the connection early, or sent another range than requested."""


def transfer_error(address: str, error: Exception) -> TorchyardError:
    """Return the error for a failed transfer, without secrets."""
    shown = without_credentials(address)
    if isinstance(error, urllib.error.HTTPError):
        hint = _HINTS.get(error.code, "try again later: the server reported an error")
        error.close()
        return StepFailed(
            f"cannot fetch {shown}",
            why=f"the server responded with {error.code} {error.reason}",
            hint=hint,
        )
    if isinstance(error, _Incomplete):
        return StepFailed(
            f"the download of {shown} is incomplete",
            why=str(error),
            hint="fetch again; the partial file is kept",
        )
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    why = without_credentials(str(reason)) or type(error).__name__
    return StepFailed(
        f"cannot fetch {shown}",
        why=why,
        hint="check the network and the http_proxy, https_proxy and no_proxy variables",
    )


def is_temporary(error: Exception) -> bool:
    """Whether the error is temporary: a broken connection or an overloaded server."""
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
    """Follow redirects to HTTP(S) only, and send the login to the same server only."""

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
    """Return the Authorization header, from the URL or ~/.netrc; empty if there is none."""
    parts = urlsplit(address)
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    else:
        credentials = _from_netrc(parts.hostname or "")
        if credentials is None:
            return ""
        user, password = credentials
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _from_netrc(host: str) -> tuple[str, str] | None:
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    # Ignore a file that is damaged or readable by others.
    with suppress(OSError, netrc.NetrcParseError):
        entry = netrc.netrc(path).authenticators(host)
        if entry:
            return entry[0], entry[2] or ""
    return None


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WriteFailed(Exception):
    """Writing to the local disk failed: retrying the request is useless."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PartialFile:
    """`NAME.part`, and `NAME.part.json` with its URL and validator."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".part")
        self.name = path.name
        self._note = path.with_name(path.name + ".part.json")

    def beginning(self, address: str) -> tuple[int, str]:
        """Return the size of the partial file and its validator; 0 if it cannot be resumed."""
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
        """Store URL and validator of the data that follows."""
        text = json.dumps({"address": without_credentials(address), "validator": validator})
        try:
            self._note.write_text(text, encoding="utf-8")
        except OSError as error:
            raise WriteFailed(error) from error

    def check_free_space(self, more_bytes: int) -> None:
        """Raise WriteFailed before the download if the disk space does not suffice."""
        free = shutil.disk_usage(self.path.parent).free
        if more_bytes > free:
            reason = f"{more_bytes:,} bytes are needed, {free:,} are free"
            raise WriteFailed(OSError(errno.ENOSPC, reason))

    @contextmanager
    def opened(self, *, keep: int) -> Iterator[int]:
        """Yield a descriptor after the first `keep` bytes; truncate the rest."""
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
        """Remove the partial file."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def move_to_destination(self, path: Path) -> None:
        """Rename the complete file to its final name."""
        self.path.replace(path)
        self._note.unlink(missing_ok=True)

    def disk_error(self, error: OSError) -> TorchyardError:
        """Remove the partial file and return the error for a failed write."""
        self.forget()
        if error.errno not in _DISK_FULL:
            return write_error(self.path, error, kept="the previous file")
        return StepFailed(
            f"the disk of {self.path.parent} is full",
            why=f"{error.strerror or error}; the partial download of {self.name} was removed",
            hint="free some space, or set TORCHYARD_HOME to a folder on another disk",
        )


def write_all(descriptor: int, chunk: bytes) -> None:
    """Write a whole chunk; sync the file for the empty chunk at the end."""
    try:
        if not chunk:
            os.fsync(descriptor)
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]
    except OSError as error:
        raise WriteFailed(error) from error


@contextmanager
def download_lock(path: Path) -> Iterator[None]:
    """Lock a download against other processes; waits for the lock."""
    lock = path.with_name(path.name + ".part.lock")
    while True:
        descriptor = open_lock_file(lock)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The previous holder removed the lock file, and a third process may have created a new one.
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
_PROGRESS_INTERVAL_S = 5.0
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416

Progress = Callable[[str], None]


def download(
    address: str,
    path: Path,
    *,
    sha256: str,
    progress: Progress,
    settings: TransferSettings | None = None,
) -> None:
    """Download `address` to `path`; without a checksum, earlier attempts are not resumed."""
    settings = settings or TransferSettings()
    part = PartialFile(path)
    with download_lock(path):
        if sha256 and path.is_file() and sha256_of(path) == sha256:
            progress(f"{path.name} is already downloaded")
            return
        path.unlink(missing_ok=True)
        if not sha256:
            part.forget()
        resumed = _fill(part, address, progress, settings)
        if resumed and sha256_of(part.path) != sha256:
            # The file on the server may have changed between the two parts.
            part.forget()
            _fill(part, address, progress, settings)
        if sha256:
            _check_part(part, address, sha256)
        part.move_to_destination(path)


def _fill(part: PartialFile, address: str, progress: Progress, settings: TransferSettings) -> bool:
    """Download the whole file to `part`; return True if an earlier attempt was resumed."""
    try:
        local = local_path(address)
        if local is not None:
            _copy(local, part)
            return False
        return _receive_with_retries(part, address, progress, settings)
    except WriteFailed as error:
        raise part.disk_error(error.error) from error


def _check_part(part: PartialFile, address: str, sha256: str) -> None:
    name = f"{part.name} from {without_credentials(address)}"
    hint = "compare the recipe's sha256 with the publisher's; if it is right, fetch again"
    try:
        check_sha256(part.path, sha256, name=name, hint=hint)
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


def _receive_with_retries(
    part: PartialFile, address: str, progress: Progress, settings: TransferSettings
) -> bool:
    """Download with several attempts, each resuming the one before where that is safe."""
    resumed = False
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            resumed = _receive(part, address, progress, settings) or resumed
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError) and error.code == _RANGE_NOT_SATISFIABLE:
                # The partial file is at least as long as the file on the server.
                part.forget()
            elif not is_temporary(error):
                raise transfer_error(address, error) from error
            if attempt == _ATTEMPTS:
                raise transfer_error(address, error) from error
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
    """Send one request; return True if it resumed the partial file."""
    start_at, validator = part.beginning(address)
    headers = {"Range": f"bytes={start_at}-", "If-Range": validator} if start_at else {}
    reply = open_address(address, headers=headers, settings=settings)
    try:
        resumed = reply.status == _PARTIAL_CONTENT
        if resumed and not str(reply.headers.get("Content-Range")).startswith(f"bytes {start_at}-"):
            part.forget()
            raise _Incomplete("the server sent another range of the file than requested")
        start = start_at if resumed else 0
        length = reply.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        if not resumed:
            part.forget()
        part.check_free_space((total or 0) - start)
        part.remember(address, _validator(reply))
        received = _write_reply(reply, part, start, total, progress)
    finally:
        reply.close()
    if total is not None and received != total:
        raise _Incomplete(f"the transfer ended after {received:,} of {total:,} bytes")
    return resumed


def _validator(reply: HTTPResponse) -> str:
    """Return a strong ETag or the Last-Modified date; a weak ETag does not identify bytes."""
    tag = reply.headers.get("ETag", "")
    return tag if tag.startswith('"') else reply.headers.get("Last-Modified", "")


def _write_reply(
    reply: HTTPResponse, part: PartialFile, start: int, total: int | None, progress: Progress
) -> int:
    received, reported_at = start, time.monotonic()
    with part.opened(keep=start) as target:
        while True:
            try:
                chunk = reply.read(_CHUNK_BYTES)
            except IncompleteRead as error:
                write_all(target, error.partial)
                received += len(error.partial)
                raise _Incomplete(f"the transfer ended after {received:,} bytes") from error
            write_all(target, chunk)
            if not chunk:
                return received
            received += len(chunk)
            if time.monotonic() - reported_at > _PROGRESS_INTERVAL_S:
                reported_at = time.monotonic()
                of = f" of {total / 1e6:.1f}" if total else ""
                progress(f"{part.name}: {received / 1e6:.1f}{of} MB")

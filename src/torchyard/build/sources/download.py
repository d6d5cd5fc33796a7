"""Download one file: whole and of the right checksum under its name, or not there at all.

What has arrived waits in `NAME.part`. It is gone on with only when the server says by its validator
(ETag or Last-Modified) that the file is still the same, and a checksum is there to prove it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError

from torchyard.build.sources.addresses import local_path_of, without_credentials
from torchyard.build.sources.checksum import check_sha256, sha256_of
from torchyard.build.sources.partial_file import PartialFile, WriteFailed, alone, write_all
from torchyard.build.sources.transfer import (
    HttpReply,
    TransferSettings,
    is_passing,
    open_address,
    refused,
)
from torchyard.errors import StepFailed, TorchyardError

__all__ = ["download"]

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

"""Pack run folders into a `.tar.gz` archive, and unpack archives from untrusted sources.

If any member is not a regular file or folder below the folder of a run, or the archive is larger
than allowed, the whole archive is rejected before any run is moved into place.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final, cast

from torchyard.core.units import format_bytes
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_reading import open_regular_file
from torchyard.files.safe_writing import write_error, write_errors

LARGEST_BYTES: Final = 16 * 2**30
"""Default limit on the total size of the files of an archive."""
_MOST_MEMBERS: Final = 1_000_000
_LARGEST_READ_BYTES: Final = 4 * 2**20
"""Long names are extra records, which tarfile reads into memory at once."""
_CHUNK_BYTES: Final = 2**20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")
_PART: Final = re.compile(r"[^/\x00\\]{1,255}")

Progress = Callable[[int, int], None]


def is_run_name(name: str) -> bool:
    """Return whether a run folder in the results directory may have that name."""
    return _NAME.fullmatch(name) is not None


def plain_files(folder: Path) -> Iterator[Path]:
    """Yield all regular files below the folder, as sorted relative paths; no links or devices."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(place) / name
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder)


def write_archive(path: Path, folders: Sequence[Path], *, progress: Progress | None = None) -> int:
    """Write the run folders to an archive atomically and return its size."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with ExitStack() as stack:
        stack.enter_context(write_errors(path, kept="what was there"))
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.callback(partial.unlink, missing_ok=True)
        with tarfile.open(partial, "w:gz", compresslevel=6) as archive:
            for number, folder in enumerate(folders, start=1):
                for inside in plain_files(folder):
                    name = f"{folder.name}/{inside}"
                    archive.add(folder / inside, name, recursive=False, filter=_without_owner)
                if progress is not None:
                    progress(number, len(folders))
        partial.replace(path)
        return path.stat().st_size


def unpack(
    path: Path, into: Path, *, largest_bytes: int = LARGEST_BYTES, progress: Progress | None = None
) -> list[str]:
    """Unpack the archive into `into` and return the names of its run folders; `progress` is in MiB."""
    names: dict[str, None] = {}
    remaining_bytes = largest_bytes
    with _opened(path, largest_bytes, progress) as archive:
        for count, member in enumerate(archive):
            parts = _checked_parts(path, member)
            if count >= _MOST_MEMBERS:
                raise _refused(path, f"it has more than {_MOST_MEMBERS} members")
            if member.isdir():
                continue
            remaining_bytes -= member.size
            if remaining_bytes < 0:
                raise _too_large(path, largest_bytes)
            source = archive.extractfile(member)
            if source is None:
                raise _refused(path, f"{member.name!r} has no content")
            names.setdefault(parts[0])
            try:
                _write(into.joinpath(*parts), source)
            except FileExistsError:
                raise _refused(path, f"it contains {member.name!r} twice") from None
    return list(names)


@contextmanager
def _opened(path: Path, largest_bytes: int, progress: Progress | None) -> Iterator[tarfile.TarFile]:
    # Headers and padding are not in the sizes of members.
    bound_bytes = 2 * largest_bytes + 2**20
    try:
        with open_regular_file(path) as packed, gzip.open(packed, "rb") as plain:
            total_mib = path.stat().st_size >> 20

            def count() -> None:
                if progress is not None:
                    progress(packed.tell() >> 20, total_mib)

            bounded = cast("IO[bytes]", _Bounded(plain, path, bound_bytes, count))
            with tarfile.open(fileobj=bounded, mode="r:") as archive:
                yield archive
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", hint="give an archive or a folder") from error
    except (
        *(tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile),
        # tarfile raises these for invalid headers: bad numbers, undecodable names, hundreds of
        # extra headers in a row.
        *(ValueError, OverflowError, IndexError, KeyError, TypeError, RecursionError),
    ) as error:
        raise ResultsDamaged(
            f"{path} is not a complete archive", why=str(error), hint="create or download it again"
        ) from error
    except OSError as error:
        raise write_error(path, error, kept="every existing run") from error


class _Bounded(io.RawIOBase):
    """A file with a limit on the total size and on the size of one read."""

    def __init__(
        self, file: gzip.GzipFile, path: Path, largest_bytes: int, count: Callable[[], None]
    ) -> None:
        super().__init__()
        self._file, self._path, self._largest_bytes = file, path, largest_bytes
        self._count = count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset > self._largest_bytes:
            raise _too_large(self._path, self._largest_bytes)
        return self._file.seek(offset)

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _LARGEST_READ_BYTES:
            raise _refused(self._path, "it contains a header that is too long")
        if self._file.tell() + size > self._largest_bytes:
            raise _too_large(self._path, self._largest_bytes)
        self._count()
        return self._file.read(size)


def _checked_parts(path: Path, member: tarfile.TarInfo) -> list[str]:
    """Return the path components of a member; raise if it must not be unpacked."""
    shown = repr(member.name[:200])
    if member.size < 0:
        raise _refused(path, f"{shown} has a negative size")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.sparse:
        raise _refused(path, f"{shown} is a link, a device or another special file")
    parts = member.name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") or _PART.fullmatch(part) is None for part in parts):
        raise _refused(path, f"{shown} is an unsafe path")
    if not is_run_name(parts[0]):
        raise _refused(path, f"{shown} is not inside a run folder")
    if len(parts) == 1 and not member.isdir():
        raise _refused(path, f"{shown} is not inside a run folder")
    return parts


def _write(path: Path, source: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # `x`: the second of two members of one name must not write into the first.
    with path.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _refused(path: Path, why: str) -> TorchyardError:
    return ResultsDamaged(
        f"{path} was rejected",
        why=why,
        hint="nothing was imported; create archives with `torchyard results export --archive`",
    )


def _too_large(path: Path, largest_bytes: int) -> TorchyardError:
    return UsageError(
        f"{path} was rejected",
        why=f"its unpacked size exceeds {format_bytes(largest_bytes)}",
        hint="nothing was imported; if you trust the archive, increase --max-size",
    )

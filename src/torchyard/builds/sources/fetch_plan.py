"""Code shared by all kinds of source: actions, URLs, checksums, unpacking.

Nothing is fetched here. URLs are shown and stored without credentials.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard.builds.plan import Action, Command
from torchyard.builds.recipe import SourceKind
from torchyard.errors import StepFailed, UsageError


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """The actions that fetch or update a source."""

    kind: SourceKind
    summary: str
    """Description shown to the user: `pytorch from Debian trixie, complete`."""
    actions: tuple[Action, ...]
    """Empty if an update has nothing to do."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Inputs that the actions do not contain, for `Step.inputs`."""


@dataclass(frozen=True, kw_only=True)
class FetchPlace:
    """Where a source is fetched to."""

    destination: Path
    downloads: Path
    """Folder of archives and apt state, shared by all builds."""
    where: str
    """The recipe's table of the source, for errors: `pytorch: source.git`."""
    complete: Callable[[Path], tuple[Action, ...]] = lambda _: ()
    """Return the actions that download into a tree what its configure step would download."""

    @property
    def part(self) -> Path:
        """Temporary folder of the fetch."""
        return part_of(self.destination)


def part_of(destination: Path) -> Path:
    """Return the temporary folder of a fetch; leftovers are never reused."""
    return destination.with_name(destination.name + ".part")


def recreate_part_folder(destination: Path) -> tuple[Command, ...]:
    """Return commands that recreate the temporary folder."""
    part = str(part_of(destination))
    return (
        on_this_machine("rm", "-rf", "--", part),
        on_this_machine("mkdir", "-p", "--", part),
    )


def move_to_destination(place: FetchPlace, tree: Path) -> tuple[Action, ...]:
    """Return actions that complete a tree and move it to its destination atomically."""
    part, destination = place.part, place.destination
    commands = (
        *place.complete(tree),
        on_this_machine("rm", "-rf", "--", str(destination)),
        on_this_machine("mv", "-T", "--", str(tree), str(destination)),
    )
    return commands if tree == part else (*commands, on_this_machine("rm", "-rf", "--", str(part)))


def files_of(destination: Path) -> Path:
    """Return the folder for the downloaded files of a fetched source."""
    return destination.with_name(destination.name + ".files")


def keep_files(destination: Path) -> tuple[Command, ...]:
    """Return commands that move `files` from the temporary folder to their place."""
    files = files_of(destination)
    return (
        on_this_machine("rm", "-rf", "--", str(files)),
        on_this_machine("mv", "-T", "--", str(part_of(destination) / "files"), str(files)),
    )


def nothing_to_update(kind: SourceKind, why: str) -> FetchPlan:
    """Return a plan without actions for a pinned source."""
    return FetchPlan(kind=kind, summary=f"nothing to update: {why}", actions=())


def on_this_machine(*argv: str, folder: Path | None = None) -> Command:
    """Return a command that runs outside any root folder, with English messages."""
    return Command(
        argv=argv,
        folder=str(folder) if folder else "",
        variables=(("LC_ALL", "C.UTF-8"),),
        inside_root=False,
    )


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_INSIDE_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]*@")


def checked_address(address: str, key: str, *, hint: str) -> str:
    """Return a valid URL or absolute path; raise UsageError for credentials in it."""
    if not address.strip() or address.startswith("-") or any(map(_is_control, address)):
        raise UsageError(f"{key} is not a URL or path", hint="give a URL or a path")
    if not _SCHEME.match(address):
        is_path = address.startswith(("/", "./", "../", "~")) or address in (".", "..")
        return str(Path(address).expanduser().absolute()) if is_path else address
    parts = urlsplit(address)
    secret = parts.username if parts.scheme in ("http", "https", "ftp") else parts.password
    if secret is not None:
        raise UsageError(
            f"{key} contains a user name or password ({without_credentials(address)})",
            why="recipes, plans and records are shared and must not contain secrets",
            hint=hint,
        )
    return address


def local_path(address: str) -> Path | None:
    """Return the local path of an address; None for a remote one."""
    if not _SCHEME.match(address):
        return Path(address)
    parts = urlsplit(address)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None


def file_name_of(address: str) -> str:
    """Return the last part of an address as a safe file name."""
    path = urlsplit(address).path if _SCHEME.match(address) else address
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", unquote(path).rstrip("/").rpartition("/")[2])
    return name.lstrip(".-")[-100:] or "archive"


def without_credentials(text: str) -> str:
    """Remove credentials from a URL or from a message that contains URLs.

    The query of a URL is removed as well: signed URLs have their token there.
    """
    text = _INSIDE_TEXT.sub(r"\1", text)
    if not _SCHEME.match(text) or re.search(r"\s", text):
        return re.sub(r"\?[^\s'\"<>]*", "?...", text)
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _is_control(character: str) -> bool:
    return ord(character) < ord(" ") or character == "\x7f"


_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str, *, name: str, hint: str) -> None:
    """Remove the file and raise StepFailed if its checksum is not the expected one."""
    actual = sha256_of(path)
    if actual == expected.lower():
        return
    path.unlink()
    raise StepFailed(
        f"{name} has the wrong checksum",
        why=f"sha256: expected {expected.lower()}, got {actual}; the file was removed",
        hint=hint,
    )


def checked_checksum(text: str, key: str) -> str:
    """Return a SHA-256 in lower case; raise UsageError, with `key`, if it is not valid."""
    checksum = text.strip().lower().removeprefix("sha256:")
    if _SHA256.fullmatch(checksum):
        return checksum
    raise UsageError(
        f"{key} is {text!r}, which is not a SHA-256",
        why="a SHA-256 has 64 hexadecimal digits",
        hint="`sha256sum FILE` prints it",
    )


# Names are checked before anything is unpacked. Writes through links that lead out of the folder
# are prevented by tar and unzip: both create links last, so that such a write fails.
_UNPACK = Path(__file__).with_name("unpack.sh")


def unpack_command(archive: Path, *, part: Path, strip: int) -> Command:
    """Return a command that unpacks an archive into `part/tree`."""
    script = _UNPACK.read_text(encoding="utf-8").rstrip("\n")
    return on_this_machine("sh", "-c", script, "unpack", str(archive), str(strip), folder=part)

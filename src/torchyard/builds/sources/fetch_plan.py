"""Parts of a fetch that all kinds of source share: actions, addresses, checksums, unpacking.

Actions are data: nothing is fetched here. Addresses are shown and stored without their credentials.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from torchyard.builds.plan import Action, Command
from torchyard.builds.recipe import SourceKind
from torchyard.builds.record import SourceIdentity
from torchyard.errors import StepFailed, UsageError

__all__ = [
    "FetchPlan",
    "SourceIdentity",
    "arrive",
    "check_sha256",
    "checked_address",
    "checked_checksum",
    "file_name_of",
    "files_of",
    "keep_files",
    "local_path_of",
    "nothing_to_update",
    "on_this_machine",
    "part_of",
    "sha256_of",
    "start_afresh",
    "unpack_command",
    "without_credentials",
]


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """How a source gets into its folder."""

    kind: SourceKind
    summary: str
    """For people: `pytorch from Debian trixie, complete`."""
    actions: tuple[Action, ...]
    """None at all when an update has nothing to do."""
    inputs: tuple[tuple[str, str], ...] = ()
    """What the actions do not show and the result depends on, for `Step.inputs`."""


def part_of(destination: Path) -> Path:
    """Where the work happens until it is whole; never looked at again when it is left over."""
    return destination.with_name(destination.name + ".part")


def start_afresh(destination: Path) -> tuple[Command, ...]:
    """Remove what an earlier attempt left, and make an empty place for this one."""
    part = str(part_of(destination))
    return (
        on_this_machine("rm", "-rf", "--", part),
        on_this_machine("mkdir", "-p", "--", part),
    )


def arrive(destination: Path, tree: Path) -> tuple[Command, ...]:
    """Give the finished tree its name. The rename is the last thing, and it is whole or not done."""
    part = part_of(destination)
    commands = (
        on_this_machine("rm", "-rf", "--", str(destination)),
        on_this_machine("mv", "-T", "--", str(tree), str(destination)),
    )
    return commands if tree == part else (*commands, on_this_machine("rm", "-rf", "--", str(part)))


def files_of(destination: Path) -> Path:
    """Where downloaded files of a fetched source are kept, for the record."""
    return destination.with_name(destination.name + ".files")


def keep_files(destination: Path) -> tuple[Command, ...]:
    """Move `files` out of the working folder to their place beside the source."""
    files = files_of(destination)
    return (
        on_this_machine("rm", "-rf", "--", str(files)),
        on_this_machine("mv", "-T", "--", str(part_of(destination) / "files"), str(files)),
    )


def nothing_to_update(kind: SourceKind, why: str) -> FetchPlan:
    """The plan of an update that cannot change anything."""
    return FetchPlan(kind=kind, summary=f"nothing to update: {why}", actions=())


def on_this_machine(*argv: str, folder: Path | None = None) -> Command:
    """A command that is never run in a root folder, and whose messages are in English."""
    return Command(
        argv=argv,
        folder=str(folder) if folder else "",
        variables=(("LC_ALL", "C.UTF-8"),),
        inside_root=False,
    )


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


_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, wanted: str, *, name: str, mend: str) -> None:
    """Remove a file that is not the one that was asked for, and say so."""
    found = sha256_of(path)
    if found == wanted.lower():
        return
    path.unlink()
    raise StepFailed(
        f"{name} has the wrong checksum",
        why=f"sha256 wanted {wanted.lower()}, found {found}; the file was removed",
        hint=mend,
    )


def checked_checksum(text: str, key: str) -> str:
    """`text` in small letters, if it can be a SHA-256 at all; `key` is named in the error."""
    small = text.strip().lower().removeprefix("sha256:")
    if _SHA256.fullmatch(small):
        return small
    raise UsageError(
        f"{key} is {text!r}, which is no SHA-256",
        why="64 hexadecimal digits are needed",
        hint="`sha256sum FILE` prints it",
    )


# Names are looked at before anything is unpacked. Links that lead out and are then written through
# are left to tar and unzip: both make links last, so the write fails and with it the command.
_UNPACK = r"""set -eu
archive=$1 strip=$2
names=$(pwd)/names
zip=false
if [ "$(head -c 2 "$archive")" = PK ]; then zip=true; fi
if $zip; then unzip -Z1 "$archive" >"$names"; else tar -tPf "$archive" >"$names"; fi || {
  echo "$archive cannot be read: it is damaged, or no archive that tar or unzip knows" >&2; exit 1; }
if grep -E '^[/\\]|(^|[/\\])\.\.([/\\]|$)' "$names" >escaping; then
  echo "$archive has members that lead out of its folder, such as $(head -n 1 escaping);" \
    "nothing was unpacked: get the archive from its publisher" >&2
  exit 1
fi
if ! $zip && LC_ALL=C tar -tvPf "$archive" | grep -a '^[bcp]' >devices; then
  echo "$archive has devices or FIFOs, such as $(head -n 1 devices);" \
    "nothing was unpacked: get the archive from its publisher" >&2
  exit 1
fi
mkdir tree
if $zip; then
  mkdir unzipped
  unzip -q "$archive" -d unzipped
  find unzipped -mindepth $((strip + 1)) -maxdepth $((strip + 1)) -exec mv -t tree {} +
  rm -rf unzipped
else
  tar -x --no-same-owner --no-same-permissions --strip-components="$strip" -C tree -f "$archive"
fi
if [ -z "$(ls -A tree)" ]; then
  echo "$archive is empty below $strip leading folder(s): correct the recipe's strip" >&2; exit 1
fi"""


def unpack_command(archive: Path, *, part: Path, strip: int) -> Command:
    """Unpack into `part/tree`; `part` exists, and is thrown away when this fails."""
    return on_this_machine("sh", "-c", _UNPACK, "unpack", str(archive), str(strip), folder=part)

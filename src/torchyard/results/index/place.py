"""Where the file of the index lies: inside the home, or in the user's cache folder.

SQLite trusts the locks of the file system. Those of network and user-space file systems are often
missing or wrong, and two writers would then damage the file; so a home on one of them, like a home
that cannot be written, has its index in the cache folder of this user on this machine. WAL mode,
which needs memory shared between all users of a file, is not used anywhere.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

__all__ = ["INDEX_FILE", "file_system_of", "is_local", "places_for"]

INDEX_FILE: Final = ".index.sqlite"

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"tmpfs", "xfs", "zfs"}
)
"""File systems of this machine whose locks hold. What is not named here counts as a network."""


def places_for(home: Path) -> list[Path]:
    """Files to try, best first; empty when there is no place to write, or no home yet."""
    if not home.is_dir():
        return []
    places = []
    inside = home / INDEX_FILE
    # In a home of several users the file may be another one's.
    ours = not inside.exists() or os.access(inside, os.R_OK | os.W_OK)
    if ours and is_local(home) and os.access(home, os.W_OK | os.X_OK):
        places.append(inside)
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    cache = _cache_folder()
    if cache is not None:
        places.append(cache / f"index-{digest}.sqlite")
    return places


def is_local(folder: Path) -> bool:
    """Whether locks on the folder's file system can be trusted."""
    return file_system_of(folder) in _LOCAL


def file_system_of(folder: Path) -> str:
    """The type of the file system that a folder is on, such as `ext4` or `nfs4`; empty if unknown."""
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    resolved = str(folder.resolve())
    by_device, by_path, longest = "", "", -1
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004
            continue
        kind = after.split()[0]
        if fields[2] == wanted:
            by_device = kind
        point = _unescaped(fields[4])
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            by_path, longest = kind, len(point)
    # Device numbers are exact; some file systems (btrfs, overlay) show another one to stat.
    return by_device or by_path


def _unescaped(point: str) -> str:
    """Mount points have blanks as octal escapes."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, letter)
    return point


def _cache_folder() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME")
    base = Path(named) if named and Path(named).is_absolute() else None
    if base is None:
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "torchyard"

"""Checksums of files, and what is said when one is wrong."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from torchyard.errors import StepFailed, UsageError

__all__ = ["check_sha256", "checked_checksum", "sha256_of"]

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

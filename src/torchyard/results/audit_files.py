"""Audits as JSON files in the home folder: written as a whole, read back with errors that say why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from torchyard.core.audit import Audit
from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.results.bounded_read import read_json
from torchyard.results.durable import replace_file, to_json_text, write_failed
from torchyard.results.run_home import home_folder

__all__ = ["FORMAT", "audits_home", "latest_audit", "new_audit_path", "read_audit", "write_audit"]

FORMAT: Final = 1
"""Raised when an older Torchyard would misread a file."""


def audits_home() -> Path:
    """The folder of audits."""
    return home_folder() / "audits"


def new_audit_path(audit: Audit, home: Path) -> Path:
    """A path that sorts by time: `20250102T030405Z.json`, with a number where it is taken."""
    digits = "".join(letter for letter in audit.started[:19] if letter.isalnum())
    path, number = home / f"{digits}Z.json", 1
    while os.path.lexists(path):
        number += 1
        path = home / f"{digits}Z-{number}.json"
    return path


def write_audit(audit: Audit, path: Path) -> None:
    """Put the audit there; a reader sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path.parent, error, kept="what is there") from error
    document = {"format": FORMAT, "audit": encode(audit)}
    replace_file(path, to_json_text(document, indent=1) + "\n")


def read_audit(path: Path) -> Audit:
    """The audit in a file."""
    try:
        document = read_json(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no audit at {path}", hint="`torchyard machine audit` makes one"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}",
            hint="`torchyard machine audit` makes an audit",
        ) from error
    except ValueError as error:
        raise _damaged(path, f"it is no JSON: {error}") from error
    return _audit_in(document, path)


def latest_audit(home: Path) -> Path | None:
    """The newest one by name; None when there is none."""
    try:
        found = [path for path in home.iterdir() if path.suffix == ".json" and path.is_file()]
    except OSError:
        return None
    return max(found, default=None, key=_age)


def _age(path: Path) -> tuple[str, int]:
    time, _, number = path.stem.partition("-")
    return time, int(number) if number.isdecimal() else 1


def _audit_in(document: Any, path: Path) -> Audit:
    if not isinstance(document, dict) or "audit" not in document:
        raise _damaged(path, "it holds no audit")
    number = document.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard",
            why=f"its format is {number}, this version reads up to {FORMAT}",
            hint="update Torchyard",
        )
    try:
        # A newer minor version may have added keys: those are skipped.
        return decode(Audit, document["audit"], where="audit", strict=False)
    except TorchyardError as error:
        raise _damaged(path, error.what) from error


def _damaged(path: Path, why: str) -> ResultsDamaged:
    return ResultsDamaged(
        f"{path} is not an audit that can be read", why=why, hint="measure again, or name another"
    )

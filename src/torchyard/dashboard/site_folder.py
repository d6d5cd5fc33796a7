"""A folder of files that Torchyard wrote itself, and may therefore replace.

    .torchyard-site.json   which files are ours, and from what each was made

Only a folder with this file, or an empty one, is ever written to; only files named in it are ever
removed. Each file is replaced as a whole. Knows nothing of pages.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard import __version__
from torchyard.errors import UsageError
from torchyard.results.durable import replace_file, to_json_text, write_failed

__all__ = ["MARKER", "SiteFolder"]

MARKER: Final = ".torchyard-site.json"
_FORMAT: Final = 1


class SiteFolder:
    """The folder while it is written."""

    def __init__(self, folder: Path) -> None:
        """Claim the folder; raises UsageError when it holds something else."""
        self.folder = folder.absolute()
        self.written = 0
        self.unchanged = 0
        self.removed = 0
        self._before = _claimed(self.folder)
        self._now: dict[str, str] = {}

    def is_made_from(self, name: str, key: str) -> bool:
        """Whether the file was made from this already; then it is kept as it is."""
        if self._before.get(name) != key or not key or not (self.folder / name).is_file():
            return False
        self._now[name] = key
        self.unchanged += 1
        return True

    def plan(self, names: list[str]) -> None:
        """Say which files will be ours before any is written: a kill leaves none unknown."""
        self._save({**dict.fromkeys(names, ""), **self._before})

    def write(self, name: str, text: str, *, key: str = "") -> None:
        """Put a file in its place, unless it is there already."""
        path = self.folder / _safe(name)
        self._now[name] = key
        # What no page may hold half of: a name can carry half a character.
        data = text.encode("utf-8", "replace")
        try:
            if path.is_file() and path.read_bytes() == data:
                self.unchanged += 1
                return
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failed(path, error, kept="what is there") from error
        replace_file(path, data.decode("utf-8"))
        self.written += 1

    def finish(self) -> None:
        """Remove what was ours and is no more."""
        for name in self._before.keys() - self._now.keys():
            path = self.folder / _safe(name)
            with suppress(OSError):
                path.unlink()
                self.removed += 1
        for name in {str(PurePosixPath(name).parent) for name in self._before} - {"."}:
            with suppress(OSError):
                (self.folder / _safe(name)).rmdir()
        self._before = {}
        self._save(self._now)

    def leave(self) -> None:
        """Remember what was done so far; nothing is removed."""
        self._save({**self._before, **self._now})

    def _save(self, files: dict[str, str]) -> None:
        facts = {"format": _FORMAT, "torchyard": __version__, "files": files}
        replace_file(self.folder / MARKER, to_json_text(facts, indent=0) + "\n")


def _claimed(folder: Path) -> dict[str, str]:
    """The files that are ours by now."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
        if taken and not (folder / MARKER).is_file():
            raise _not_ours(folder, f"it holds no {MARKER}")
        facts = json.loads((folder / MARKER).read_bytes() if taken else b"{}")
    except FileExistsError as error:
        raise _not_ours(folder, "it is not a folder") from error
    except (ValueError, RecursionError) as error:
        raise _not_ours(folder, f"its {MARKER} is damaged") from error
    except OSError as error:
        raise write_failed(folder, error, kept="what is there") from error
    if not taken:
        return {}
    files = facts.get("files") if isinstance(facts, dict) else None
    if not isinstance(files, dict) or facts.get("format") != _FORMAT:
        raise _not_ours(folder, f"its {MARKER} is of another version")
    return {name: str(key) for name, key in files.items() if _is_safe(name)}


def _not_ours(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"{folder} is not written to",
        why=f"{why}, so it may hold files of somebody else",
        hint="name a new folder, or empty this one",
    )


def _safe(name: str) -> str:
    if not _is_safe(name):
        raise ValueError(f"{name!r} is no name inside a site")
    return name


def _is_safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and not {"..", "."} & set(parts)

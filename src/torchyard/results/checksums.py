"""Checksums of a run that has ended: a changed byte in any of its files is found.

They lie in the run folder as `SHA256SUMS`, in the format of `sha256sum`, which can check them too.
`run.json` names the file, so that a run without it is damaged and not one of an earlier release.
Checksums find accidents, not forgeries: whoever changes a file can write a new checksum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torchyard.results.archive import plain_files
from torchyard.results.bounded_read import hash_file, read_document
from torchyard.results.durable import replace_file
from torchyard.results.layout import RUN_FILE

__all__ = [
    "CHECKSUMS_KEY",
    "SUMS_FILE",
    "changed_files",
    "is_checksummed",
    "replace_facts",
    "write_sums",
]

SUMS_FILE: Final = "SHA256SUMS"
CHECKSUMS_KEY: Final = "checksums"
"""Of `run.json`: the name of the file with the checksums."""
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_PLAIN_NAME: Final = re.compile(r"[^\n\r\\]+")

Sums = dict[str, tuple[str, ...]]
"""Checksums by file. While `run.json` is being replaced it has two, and either is right."""


def is_checksummed(folder: Path, info: Mapping[str, Any]) -> bool:
    """Whether the run has checksums, or says that it has.

    The file alone says nothing of a run that was killed between its checksums and its last facts.
    """
    there = (folder / SUMS_FILE).exists() and info.get("state") != "running"
    return there or info.get(CHECKSUMS_KEY) is not None


def write_sums(folder: Path, facts_text: str) -> None:
    """Note the checksums of all files of the run and of the `run.json` that is about to be written."""
    sums: Sums = {}
    for path in plain_files(folder):
        name = path.as_posix()
        if name not in (RUN_FILE, SUMS_FILE) and _PLAIN_NAME.fullmatch(name):
            with suppress(OSError):  # a log of many gigabytes stays without a checksum
                sums[name] = (hash_file(folder / path),)
    _write(folder, {RUN_FILE: (_hash_text(facts_text),), **sums})


def replace_facts(folder: Path, facts_text: str) -> None:
    """Replace `run.json` of a run that has ended, and its checksum with it.

    The checksum of a file that was changed by somebody else before stays wrong.
    """
    path = folder / RUN_FILE
    sums = _read(folder) if (folder / SUMS_FILE).is_file() else {}
    known = sums.get(RUN_FILE, ())
    if hash_file(path) not in known:
        replace_file(path, facts_text)
        return
    new = _hash_text(facts_text)
    _write(folder, {**sums, RUN_FILE: (*known, new)})  # right before and after the next line
    replace_file(path, facts_text)
    _write(folder, {**sums, RUN_FILE: (new,)})


def changed_files(folder: Path, *, known: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Files that are not as they were when the run ended, and in what way; without known ones."""
    try:
        sums = _read(folder)
    except FileNotFoundError:
        yield SUMS_FILE, "the file is missing"
        return
    except (OSError, ValueError) as error:
        yield SUMS_FILE, getattr(error, "strerror", None) or str(error)
        return
    for name, right in sums.items():
        if name in known:
            continue
        try:
            if hash_file(folder / name) not in right:
                yield name, "changed since the run ended: its checksum differs"
        except FileNotFoundError:
            yield name, "the file is missing"
        except OSError as error:
            yield name, error.strerror or str(error)


def _read(folder: Path) -> Sums:
    sums: Sums = {}
    text = read_document(folder / SUMS_FILE).decode("utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None or Path(match[2]).is_absolute() or ".." in Path(match[2]).parts:
            raise ValueError(f"line {number} is not a checksum of a file in the folder")
        sums[match[2]] = (*sums.get(match[2], ()), match[1])
    if RUN_FILE not in sums:
        raise ValueError(f"there is no checksum of {RUN_FILE}")
    return sums


def _write(folder: Path, sums: Sums) -> None:
    lines = [f"{value}  {name}\n" for name, values in sums.items() for value in values]
    replace_file(folder / SUMS_FILE, "".join(lines))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()

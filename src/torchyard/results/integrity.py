"""Checksums of finished runs, and verification of all files of a run folder, by file and line.

Checksums are stored as `SHA256SUMS`, which `sha256sum` can check too, and `run.json` names that file. They detect
accidental changes, not forgery. An incomplete last line, left by a killed process, is not damage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.errors import ResultsDamaged
from torchyard.files.safe_reading import (
    LineTooLong,
    hash_file,
    parse_json,
    read_document,
    read_lines,
)
from torchyard.files.safe_writing import replace_file
from torchyard.results.archive import plain_files
from torchyard.results.directory import (
    COMPARISONS_FILE,
    LAUNCHES_FILE,
    RECORD_FILES,
    RUN_FILE,
    SAMPLES_FILE,
)
from torchyard.results.plausibility import decode_possible
from torchyard.results.run_reader import read_facts_of_run, read_info

SUMS_FILE: Final = "SHA256SUMS"
CHECKSUMS_KEY: Final = "checksums"
"""Key of `run.json` with the name of the checksum file."""
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_PLAIN_NAME: Final = re.compile(r"[^\n\r\\]+")

Sums = dict[str, tuple[str, ...]]
"""Checksums by file. While `run.json` is being replaced it has two, either of which is valid."""


def is_checksummed(folder: Path, info: Mapping[str, Any]) -> bool:
    """Return whether the run has checksums or should have them; a killed run may have the file only."""
    has_file = (folder / SUMS_FILE).exists() and info.get("state") != "running"
    return has_file or info.get(CHECKSUMS_KEY) is not None


def write_sums(folder: Path, facts_text: str) -> None:
    """Write the checksums of all files of the run and of the `run.json` that is written next."""
    sums: Sums = {}
    for path in plain_files(folder):
        name = path.as_posix()
        if name not in (RUN_FILE, SUMS_FILE) and _PLAIN_NAME.fullmatch(name):
            with suppress(OSError):  # a log of many gigabytes gets no checksum
                sums[name] = (hash_file(folder / path),)
    _write(folder, {RUN_FILE: (_hash_text(facts_text),), **sums})


def replace_facts(folder: Path, facts_text: str) -> None:
    """Replace `run.json` of a run that has ended, and its checksum, unless that was invalid before."""
    path = folder / RUN_FILE
    sums = _read(folder) if (folder / SUMS_FILE).is_file() else {}
    current = sums.get(RUN_FILE, ())
    if hash_file(path) not in current:
        replace_file(path, facts_text)
        return
    new = _hash_text(facts_text)
    _write(folder, {**sums, RUN_FILE: (*current, new)})  # valid before and after the next line
    replace_file(path, facts_text)
    _write(folder, {**sums, RUN_FILE: (new,)})


def changed_files(folder: Path, *, known: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield files that changed since the run ended, with a description; skip `known` ones."""
    try:
        sums = _read(folder)
    except FileNotFoundError:
        yield SUMS_FILE, "the file is missing"
        return
    except (OSError, ValueError) as error:
        yield SUMS_FILE, getattr(error, "strerror", None) or str(error)
        return
    for name, valid in sums.items():
        if name in known:
            continue
        try:
            if hash_file(folder / name) not in valid:
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


_NO_RECORD: Final = "not a complete record"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One damaged file or line."""

    file: str
    """Path inside the run folder."""
    line: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of verifying one run."""

    run: str
    folder: str
    damage: tuple[Damage, ...] = ()
    comparisons: int = 0
    """Number of readable records; the same for blocks and launches."""
    blocks: int = 0
    launches: int = 0
    torn_lines: int = 0
    """Incomplete last lines."""
    size_bytes: int = 0
    checksummed: bool = False
    """Whether the run has checksums; without them, changes to valid records are not detected."""


def verify_run(folder: Path) -> Verified:
    """Verify every record and checksum of the run."""
    damage: list[Damage] = []
    info: Mapping[str, Any] = {}
    ended = False
    try:
        info = read_info(folder)
        ended = read_facts_of_run(folder, info)[0] == "finished"
    except ResultsDamaged as error:
        damage.append(_damage(folder, RUN_FILE, error))
    checksummed = is_checksummed(folder, info)
    counts: dict[str, int] = {}
    torn = size_bytes = 0
    for name in RECORD_FILES:
        good = 0
        path = folder / name
        try:
            size_bytes += path.stat().st_size
            last = None
            for line, problem in _problems(path):
                if last is not None:
                    damage.append(last)
                last = Damage(file=name, line=line, what=problem) if problem else None
                good += not problem
            # Only an incomplete record can be a torn last line; invalid content is damage. A
            # finished run has written all of its lines.
            if last is not None and last.what == _NO_RECORD and not ended:
                torn += 1
            elif last is not None:
                damage.append(last)
        except FileNotFoundError:
            damage.append(Damage(file=name, line=None, what="the file is missing"))
        except LineTooLong as error:
            damage.append(Damage(file=name, line=error.number, what=str(error)))
        except OSError as error:
            damage.append(Damage(file=name, line=None, what=str(error.strerror or error)))
        counts[name] = good
    if checksummed:
        # The damaged line is more specific than a wrong checksum of its file.
        reported = {item.file for item in damage}
        damage += [
            Damage(file=name, line=None, what=what)
            for name, what in changed_files(folder, known=reported)
        ]
    return Verified(
        run=folder.name,
        folder=str(folder),
        damage=tuple(damage),
        comparisons=counts[COMPARISONS_FILE],
        blocks=counts[SAMPLES_FILE],
        launches=counts[LAUNCHES_FILE],
        torn_lines=torn,
        size_bytes=size_bytes,
        checksummed=checksummed,
    )


def _problems(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number of each line and its problem; empty if it is valid."""
    for number, line in read_lines(path):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        is_record = isinstance(record, dict)
        yield number, _content_problem(path.name, record) if is_record else _NO_RECORD


def _content_problem(name: str, record: Mapping[str, Any]) -> str:
    try:
        if name == SAMPLES_FILE:
            decode_possible(Block, record.get("block"))
            if not isinstance(record.get("workload"), str):
                return "workload: not a string"
        elif name == COMPARISONS_FILE:
            decode_possible(Comparison, record)
    except ValueError as error:
        return str(error)
    return ""


def _damage(folder: Path, name: str, error: ResultsDamaged) -> Damage:
    what = f"{error.what}: {error.why}" if error.why else error.what
    return Damage(
        file=name, line=None, what=what.replace(f"{folder}/", "").replace(str(folder), "it")
    )

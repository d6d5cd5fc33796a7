"""Checksums of finished runs, and verification of everything in a run folder, by file and line.

Checksums are kept in the run folder as `SHA256SUMS`, in the format of `sha256sum`, which can
check them too. `run.json` names that file, so that a run without it is known to be damaged and
not one of an earlier release. Checksums detect accidents, not forgery. An incomplete last line,
left by a killed process, is not damage: readers skip it. Verification changes nothing.
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


_NO_RECORD: Final = "not a whole record"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that cannot be read."""

    file: str
    """Inside the run folder."""
    line: int | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What reading everything in one run found."""

    run: str
    folder: str
    damage: tuple[Damage, ...] = ()
    comparisons: int = 0
    """Lines that could be read, and so on."""
    blocks: int = 0
    launches: int = 0
    torn_lines: int = 0
    """Last lines that a kill cut off."""
    size_bytes: int = 0
    checksummed: bool = False
    """Whether the run has checksums; without them, a change that leaves valid records is not found."""


def verify_run(folder: Path) -> Verified:
    """Read every record of the run."""
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
            # Only what is no record at all can be a torn end; a record of wrong content is damage.
            # And a run that finished has written all of its lines.
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
        # A line that is named already says more than that its file has changed.
        named = {item.file for item in damage}
        damage += [
            Damage(file=name, line=None, what=what)
            for name, what in changed_files(folder, known=named)
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
    """Number of each line and what is wrong with it; empty when nothing is."""
    for number, line in read_lines(path):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        is_record = isinstance(record, dict)
        yield number, _wrong_content(path.name, record) if is_record else _NO_RECORD


def _wrong_content(name: str, record: Mapping[str, Any]) -> str:
    try:
        if name == SAMPLES_FILE:
            decode_possible(Block, record.get("block"))
            if not isinstance(record.get("workload"), str):
                return "workload: not a text"
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

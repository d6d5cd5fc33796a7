"""Reading everything that a run folder holds, to say what is damaged, by file and line.

A last line that a kill cut off is no damage: readers leave it out. In a run that has ended, every
byte is checked against the checksums that were written then. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.errors import ResultsDamaged
from torchyard.results.bounded_read import LineTooLong, parse_json, read_lines
from torchyard.results.checksums import changed_files, is_checksummed
from torchyard.results.layout import (
    COMPARISONS_FILE,
    LAUNCHES_FILE,
    RECORD_FILES,
    RUN_FILE,
    SAMPLES_FILE,
)
from torchyard.results.plausible import decode_possible
from torchyard.results.run_reader import read_facts_of_run, read_info

__all__ = ["Damage", "Verified", "verify_run"]

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

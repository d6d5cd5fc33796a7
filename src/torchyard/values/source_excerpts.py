"""Read the source lines around the places of a profile, right after the run, before files change.

File names come from the profile, which may come from anywhere, and the excerpts end up on pages
that are passed on: only regular files with a Python suffix are read, and only a few lines of each.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.values.model import Place, SourceExcerpt, ValueProfile

__all__ = ["read_excerpts", "with_excerpts"]

AROUND_FINDING: Final = 3
"""Lines before and after the place of a finding; of a node of the graph only the line itself."""
_ENDINGS: Final = (".py", ".pyi", ".pyx")
_MOST_FILE_BYTES: Final = 4 << 20
_MOST_FILES: Final = 400
_MOST_LINES: Final = 6000
_MOST_LINE_LENGTH: Final = 240


def with_excerpts(profile: ValueProfile) -> ValueProfile:
    """The profile with its source lines; those it has already stay as they are."""
    return profile if profile.excerpts else replace(profile, excerpts=read_excerpts(profile))


def read_excerpts(profile: ValueProfile) -> tuple[SourceExcerpt, ...]:
    """Lines of every file that is there; findings come first where there are too many."""
    wanted: dict[str, set[int]] = defaultdict(set)
    left = _MOST_LINES
    for file, line in _wanted(profile):
        lines = wanted[file] if file in wanted or len(wanted) < _MOST_FILES else None
        if lines is not None and line not in lines and left > 0:
            lines.add(line)
            left -= 1
    return tuple(
        excerpt for file, lines in wanted.items() for excerpt in _runs(file, lines, _read(file))
    )


def _wanted(profile: ValueProfile) -> Iterator[tuple[str, int]]:
    places: list[tuple[Place, int]] = [(found.place, AROUND_FINDING) for found in profile.findings]
    places += [(node.place, 0) for node in profile.flow.nodes]
    for place, around in places:
        if place.file.endswith(_ENDINGS) and place.line > 0:
            for line in range(max(1, place.line - around), place.line + around + 1):
                yield place.file, line


def _runs(file: str, wanted: Iterable[int], lines: list[str]) -> Iterator[SourceExcerpt]:
    run: list[int] = []
    for number in sorted(number for number in wanted if number <= len(lines)):
        if run and number != run[-1] + 1:
            yield _excerpt(file, run, lines)
            run = []
        run.append(number)
    if run:
        yield _excerpt(file, run, lines)


def _excerpt(file: str, run: list[int], lines: list[str]) -> SourceExcerpt:
    shown = (lines[number - 1][:_MOST_LINE_LENGTH] for number in run)
    return SourceExcerpt(file=file, first_line=run[0], lines=tuple(shown))


def _read(file: str) -> list[str]:
    """All lines; none of what is missing, large, or no plain file (a pipe would never end)."""
    try:
        descriptor = os.open(Path(file), os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return []
    try:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode) or known.st_size > _MOST_FILE_BYTES:
            return []
        text = os.read(descriptor, _MOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(descriptor)
    # Not splitlines, which also ends lines at form feeds, where Python counts none.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

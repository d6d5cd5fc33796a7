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

AROUND_FINDING: Final = 3
"""Lines before and after the place of a finding; of a node of the graph only the line itself."""
_ENDINGS: Final = (".py", ".pyi", ".pyx")
_MOST_FILE_BYTES: Final = 4 << 20
_MOST_FILES: Final = 400
_MOST_LINES: Final = 6000
_MOST_LINE_LENGTH: Final = 240


def with_excerpts(profile: ValueProfile) -> ValueProfile:
    """Return the profile with source lines; existing ones are kept."""
    return profile if profile.excerpts else replace(profile, excerpts=read_excerpts(profile))


def read_excerpts(profile: ValueProfile) -> tuple[SourceExcerpt, ...]:
    """Return the lines of every existing file, up to a limit; findings take precedence."""
    requested: dict[str, set[int]] = defaultdict(set)
    remaining = _MOST_LINES
    for file, line in _requested_lines(profile):
        lines = requested[file] if file in requested or len(requested) < _MOST_FILES else None
        if lines is not None and line not in lines and remaining > 0:
            lines.add(line)
            remaining -= 1
    return tuple(
        excerpt for file, lines in requested.items() for excerpt in _runs(file, lines, _read(file))
    )


def _requested_lines(profile: ValueProfile) -> Iterator[tuple[str, int]]:
    places: list[tuple[Place, int]] = [
        (finding.place, AROUND_FINDING) for finding in profile.findings
    ]
    places += [(node.place, 0) for node in profile.flow.nodes]
    for place, around in places:
        if place.file.endswith(_ENDINGS) and place.line > 0:
            for line in range(max(1, place.line - around), place.line + around + 1):
                yield place.file, line


def _runs(file: str, requested: Iterable[int], lines: list[str]) -> Iterator[SourceExcerpt]:
    run: list[int] = []
    for number in sorted(number for number in requested if number <= len(lines)):
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
    """Return all lines; none if the file is missing, large or not regular (a pipe would never end)."""
    try:
        descriptor = os.open(Path(file), os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return []
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
            return []
        text = os.read(descriptor, _MOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(descriptor)
    # Not splitlines, which also ends lines at form feeds, where Python counts none.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

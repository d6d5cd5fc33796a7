"""Values of CMake variables: requested ones as text, effective ones from CMakeCache.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.recipe import Scalar

# CMake quotes keys that contain a colon or look like a comment. `-ADVANCED` and similar are entries
# of type INTERNAL.
_ENTRY: Final = re.compile(
    r'(?:"(?P<quoted>[^"]*)"|(?P<plain>[^:=]+)):(?P<kind>[A-Z]+)=(?P<value>.*)'
)
_NOT_DECLARED: Final = "No help, variable specified on the command line."
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE", "Y"})
_FALSE: Final = frozenset({"0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND", ""})
_DEPTH: Final = 3
"""Search depth; scikit-build-core uses build/cp312-cp312-linux_aarch64/CMakeCache.txt."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One variable of the cache."""

    name: str
    kind: str
    """BOOL, STRING, PATH, FILEPATH, INTERNAL, STATIC, UNINITIALIZED."""
    value: str
    help: str = ""

    @property
    def declared(self) -> bool:
        """Whether the project declares the variable; False if only the command line sets it."""
        return self.kind != "UNINITIALIZED" and self.help != _NOT_DECLARED


def parse_cache(text: str) -> dict[str, CacheEntry]:
    """Return all entries by name."""
    entries: dict[str, CacheEntry] = {}
    help_lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("//"):
            help_lines.append(line[2:])
            continue
        match = None if line.startswith("#") else _ENTRY.fullmatch(line)
        if match is not None:
            name = match["quoted"] if match["quoted"] is not None else match["plain"]
            entries[name] = CacheEntry(
                name=name,
                kind=match["kind"],
                value=_unquoted(match["value"]),
                help="".join(help_lines),
            )
        help_lines = []
    return entries


def read_cache(path: Path) -> dict[str, CacheEntry]:
    """Return the entries of a cache file by name."""
    return parse_cache(path.read_text(encoding="utf-8", errors="replace"))


def find_cache(tree: Path, *, project: Path, likely: str) -> Path | None:
    """Return the cache file of the build of `project` below `tree`; None if there is none.

    Projects configure other projects inside their build folder, so the cache must have `project` as
    its source folder. The folder `likely` is searched first.
    """
    for path in _candidates(tree, likely):
        entry = read_cache(path).get("CMAKE_HOME_DIRECTORY")
        if entry is not None and Path(entry.value).resolve() == project.resolve():
            return path
    return None


def cmake_bool(value: str) -> bool | None:
    """Return the boolean CMake reads from a value; None if it is neither true nor false."""
    upper = value.strip().upper()
    if upper in _TRUE:
        return True
    if upper in _FALSE or upper.endswith("-NOTFOUND"):
        return False
    return None


def cmake_value(value: Scalar) -> str:
    """Format an option value for CMake."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def same_value(left: str, right: str) -> bool:
    """Whether two values are equivalent: ON and 1, a;b and "a b", /opt/x/ and /opt/x."""
    truths = (cmake_bool(left), cmake_bool(right))
    if None not in truths:
        return truths[0] == truths[1]
    return _normalized(left) == _normalized(right)


def _candidates(tree: Path, likely: str) -> Iterator[Path]:
    paths: set[Path] = set()
    patterns = [f"{likely}/CMakeCache.txt"] if likely else []
    patterns += ["/".join(["*"] * depth + ["CMakeCache.txt"]) for depth in range(_DEPTH)]
    for pattern in patterns:
        for path in sorted(tree.glob(pattern)):
            if path not in paths and path.is_file():
                paths.add(path)
                yield path


def _normalized(value: str) -> tuple[str, ...]:
    return tuple(part.rstrip("/").casefold() for part in re.split(r"[;\s]+", value.strip()))


def _unquoted(value: str) -> str:
    # CMake puts single quotes around a value that ends with a space.
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1]
    return value

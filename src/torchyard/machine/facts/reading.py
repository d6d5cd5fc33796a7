"""Turn files into facts: one value, one value of many files, a value in other words.

Every reader is `(FileTree) -> Found`, so that a section shows it as a fact, an adviser judges it
and a run records it, all from one place. Knows no file by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Found

__all__ = [
    "Reader",
    "agreed",
    "as_found",
    "facts_of",
    "fields_of",
    "ghz",
    "gib",
    "in_words",
    "line_of",
    "of_file",
    "or_none",
    "processors",
]

Reader = Callable[[FileTree], Found]


def facts_of(section: str, readers: Mapping[str, Reader], files: FileTree) -> tuple[Fact, ...]:
    """One fact for each reader, in their order."""
    return tuple(as_fact(section, name, reader(files)) for name, reader in readers.items())


def as_fact(section: str, name: str, found: Found) -> Fact:
    """The fact of a value; an empty value without a reason would be a blank, so it gets one."""
    if found.value:
        return Fact(section=section, name=name, value=found.value)
    because = found.because or "it is empty"
    return Fact(section=section, name=name, unavailable=because)


def line_of(files: FileTree, path: str) -> Found:
    """The first line of a file; an empty file is a reason."""
    found = files.read(path)
    if found.value is None:
        return found
    text = found.value.strip()
    return Found(value=text.splitlines()[0]) if text else Found(because=f"/{path} is empty")


def of_file(path: str, words: Mapping[str, str] | None = None) -> Reader:
    """A reader of one line, with the meaning of known values behind it: `2 (full)`."""

    def read(files: FileTree) -> Found:
        found = line_of(files, path)
        meaning = (words or {}).get(found.value or "")
        return Found(value=f"{found.value} ({meaning})") if meaning else found

    return read


def in_words(found: Found, say: Callable[[str], str]) -> Found:
    """The value in other words; one that cannot be understood becomes a reason."""
    if found.value is None:
        return found
    try:
        return Found(value=say(found.value))
    except (ValueError, IndexError, KeyError, ArithmeticError):
        return Found(because=f"{found.value[:80]!r} is not of the form that the kernel documents")


def processors(path: str, nothing: str = "none") -> Reader:
    """A reader of a list of processors, where an empty list means nothing and is a value."""

    def read(files: FileTree) -> Found:
        found = files.read(path)
        # nohz_full and isolated show `(null)` when the kernel was not asked for any.
        if found.value is not None and found.value.strip() in ("", "(null)"):
            return Found(value=nothing)
        return in_words(found, lambda text: cpu_list(cpus_of_list(text)))

    return read


def or_none(found: Found) -> tuple[int, ...]:
    """The processors or nodes of a list; nothing when it is unavailable or none."""
    try:
        return cpus_of_list(found.value or "")
    except ValueError:
        return ()


def agreed(values: Mapping[str, str], because: str) -> Found:
    """One value when all places agree, else every value with its places: `a (0-3), b (4)`.

    `values` maps places to values. Places that are numbers are shown as lists.
    """
    if not values:
        return Found(because=because)
    places: dict[str, list[str]] = {}
    for place, value in values.items():
        places.setdefault(value, []).append(place)
    if len(places) == 1:
        return Found(value=next(iter(places)))
    return Found(value=", ".join(f"{value} ({_places(names)})" for value, names in places.items()))


def _places(names: list[str]) -> str:
    if all(name.isdecimal() for name in names):
        return cpu_list(tuple(int(name) for name in names))
    return ", ".join(names)


def fields_of(found: Found) -> dict[str, str]:
    """`name: value` lines; the first of each name counts. Empty when it cannot be read."""
    fields: dict[str, str] = {}
    for line in (found.value or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def as_found(value: str | None, because: str) -> Found:
    """A value, or the reason."""
    return Found(value=value) if value else Found(because=because)


def gib(kib: float) -> str:
    """An amount of memory that was given in KiB."""
    return f"{kib / 2**20:.1f} GiB"


def ghz(khz: str) -> str:
    """A clock that was given in kHz; raises ValueError when it is none."""
    return f"{int(khz) / 1e6:.2f} GHz"

"""Turn files into facts: one value, one value of many files, a rephrased value.

Every reader is `(FileTree) -> Reading`, so that a section shows it as a fact, an adviser judges it
and a run records it, all from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Reading

Reader = Callable[[FileTree], Reading]


def facts_of(section: str, readers: Mapping[str, Reader], files: FileTree) -> tuple[Fact, ...]:
    """Return one fact for each reader, in their order."""
    return tuple(as_fact(section, name, reader(files)) for name, reader in readers.items())


def as_fact(section: str, name: str, reading: Reading) -> Fact:
    """Return the fact of a reading; an empty value becomes unavailable."""
    if reading.value:
        return Fact(section=section, name=name, value=reading.value)
    because = reading.because or "it is empty"
    return Fact(section=section, name=name, unavailable=because)


def line_of(files: FileTree, path: str) -> Reading:
    """Read the first line of a file; an empty file is unavailable."""
    reading = files.read(path)
    if reading.value is None:
        return reading
    text = reading.value.strip()
    return Reading(value=text.splitlines()[0]) if text else Reading(because=f"/{path} is empty")


def line_reader(path: str, form: Callable[[str], str] = str) -> Reader:
    """Return a reader of the first line of a file, in the form that is shown."""
    return lambda files: in_words(line_of(files, path), form)


def file_reader(path: str, words: Mapping[str, str]) -> Reader:
    """Return a reader of one line that appends the meaning of some values: `2 (full)`."""
    return line_reader(path, lambda text: f"{text} ({words[text]})" if text in words else text)


def switch_reader(path: str) -> Reader:
    """Return a reader of a file that contains 0 for off and 1 for on."""
    return line_reader(path, lambda text: {"0": "off", "1": "on"}.get(text, text))


def in_words(reading: Reading, rephrase: Callable[[str], str]) -> Reading:
    """Rephrase a value; one that cannot be parsed becomes unavailable."""
    if reading.value is None:
        return reading
    try:
        return Reading(value=rephrase(reading.value))
    except (ValueError, IndexError, KeyError, ArithmeticError):
        return Reading(because=f"{reading.value[:80]!r} has an unexpected format")


def processors(path: str) -> Reader:
    """Return a reader of a CPU list; an empty list is `none`."""

    def read(files: FileTree) -> Reading:
        reading = files.read(path)
        # nohz_full and isolated show `(null)` if the parameter was not given.
        if reading.value is not None and reading.value.strip() in ("", "(null)"):
            return Reading(value="none")
        return in_words(reading, lambda text: cpu_list(cpus_of_list(text)))

    return read


def combined(values: Mapping[str, str], because: str) -> Reading:
    """Return one value if all locations agree, else all values: `a (0-3), b (4)`.

    `values` maps locations to values. Numbered locations are shown as lists.
    """
    if not values:
        return Reading(because=because)
    places: dict[str, list[str]] = {}
    for place, value in values.items():
        places.setdefault(value, []).append(place)
    if len(places) == 1:
        return Reading(value=next(iter(places)))
    return Reading(
        value=", ".join(f"{value} ({_places(names)})" for value, names in places.items())
    )


def common_line(files: FileTree, pattern: str, form: Callable[[str], str] = str) -> Reading:
    """Read one line of every matching file; the first part with `*` numbers the locations."""
    part = next(n for n, step in enumerate(pattern.split("/")) if "*" in step)
    values = {
        path.split("/")[part].lstrip("abcdefghijklmnopqrstuvwxyz"): form(text)
        for path in files.paths(pattern)
        if (text := line_of(files, path).value) is not None
    }
    return combined(values, f"/{pattern}: no such file")


def _places(names: list[str]) -> str:
    if all(name.isdecimal() for name in names):
        return cpu_list(tuple(int(name) for name in names))
    return ", ".join(names)


def as_reading(value: str | None, because: str) -> Reading:
    """Return a reading with the value, or with the reason if there is none."""
    return Reading(value=value) if value else Reading(because=because)


def gib(kib: float) -> str:
    """Format an amount of memory given in KiB."""
    return f"{kib / 2**20:.1f} GiB"


def ghz(khz: str) -> str:
    """Format a clock given in kHz; raises ValueError."""
    return f"{int(khz) / 1e6:.2f} GHz"

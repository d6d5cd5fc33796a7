"""Which file the loader takes for each library that a file needs, in the target.

The loader itself is asked (`ldd`), inside the root folder where there is one. Where a library is
already in a process that imported the module, that process is right and `ldd` is not: a library
alone does not see the search path of the interpreter, nor what the module loads beforehand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torchyard.build.verify.check import Subject
from torchyard.build.verify.elf import DynamicSection, read_dynamic
from torchyard.build.verify.target_python import RunInTarget

__all__ = ["CheckedLibrary", "LibraryLink", "read_links", "real_paths"]

_LINK: Final = re.compile(r"\s+(?P<name>\S.*?) => (?P<path>/.*?|not found)(?: \(0x[0-9a-f]+\))?")
# The loader says: FILE: OTHER: version `GLIBCXX_3.4.32' not found (required by FILE)
_VERSION: Final = re.compile(
    r"(?:.*: )?(?P<path>/[^:]+): version `(?P<version>[^']+)' not found \(required by (?P<by>.+)\)"
)


@dataclass(frozen=True, kw_only=True)
class LibraryLink:
    """One library that is needed, directly or by way of others."""

    name: str
    path: str
    """Real path in the target; empty when it is not found."""


@dataclass(frozen=True, kw_only=True)
class CheckedLibrary:
    """One library that the recipe wants checked."""

    path: str
    dynamic: DynamicSection
    links: tuple[LibraryLink, ...] = ()
    missing_versions: tuple[tuple[str, str], ...] = field(default=())
    """(version, library that lacks it)."""


def read_links(subject: Subject, paths: Sequence[str]) -> tuple[CheckedLibrary, ...] | None:
    """The links of each file; None when the target has no `ldd`."""
    dynamic = {path: read_dynamic(subject.outside(path)) for path in paths}
    files = [path for path in paths if dynamic[path] is not None]
    if not files:
        return ()
    try:
        # The C locale: "not found" is translated in others.
        done = subject.run(("ldd", "--", *files), {"LC_ALL": "C"})
    except OSError:
        return None
    if not done.stdout:
        return None
    found = _parse_ldd(done.stdout, files)
    versions = _parse_versions(done.stdout + "\n" + done.stderr)
    everything = {path for links in found.values() for _, path in links if path}
    real = real_paths(subject.run, (*files, *sorted(everything)), root=subject.root)
    loaded = _loaded_by_soname(subject)
    # All of them, not one for each name: torch and an extension may both have a `_C.so`.
    in_process = set(subject.module.loaded if subject.module is not None else ())
    result: list[CheckedLibrary] = []
    for file in files:
        section = dynamic[file]
        assert section is not None  # noqa: S101 - files holds only those that have one
        known = loaded if real.get(file, file) in in_process else {}
        result.append(
            CheckedLibrary(
                path=file,
                dynamic=section,
                links=tuple(
                    LibraryLink(name=name, path=known.get(name) or real.get(path, path))
                    for name, path in found.get(file, ())
                ),
                missing_versions=tuple(
                    (version, lacking) for version, lacking, by in versions if by == file
                ),
            )
        )
    return tuple(result)


def real_paths(run: RunInTarget, paths: Sequence[str], *, root: str) -> dict[str, str]:
    """Path -> the file it leads to, with links followed inside the target."""
    if not root:
        return {path: os.path.realpath(path) for path in paths}
    unique = tuple(dict.fromkeys(paths))
    try:
        done = run(("realpath", "-z", "-m", "--", *unique), {})
    except OSError:
        return {}
    answers = done.stdout.split("\0")[:-1]
    if done.returncode != 0 or len(answers) != len(unique):
        return {}
    return dict(zip(unique, answers, strict=True))


def _loaded_by_soname(subject: Subject) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in subject.module.loaded if subject.module is not None else ():
        section = read_dynamic(subject.outside(path))
        name = section.soname if section is not None and section.soname else ""
        found.setdefault(name or os.path.basename(path), path)  # noqa: PTH119 - a path elsewhere
    return found


def _parse_ldd(text: str, files: Sequence[str]) -> Mapping[str, list[tuple[str, str]]]:
    """File -> (name, path) of all that it pulls in; the path is empty for one not found.

    With several files, `ldd` puts a line `FILE:` before each block.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    current = files[0] if len(files) == 1 else ""
    for line in text.splitlines():
        if not line.startswith(("\t", " ")) and line.endswith(":") and line[:-1] in files:
            current = line[:-1]
            continue
        match = _LINK.fullmatch(line)
        if match is not None and current:
            path = "" if match["path"] == "not found" else match["path"]
            found.setdefault(current, []).append((match["name"], path))
    return found


def _parse_versions(text: str) -> list[tuple[str, str, str]]:
    matches = (_VERSION.fullmatch(line.strip()) for line in text.splitlines())
    return [(match["version"], match["path"], match["by"]) for match in matches if match]

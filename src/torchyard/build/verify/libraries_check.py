"""Linked libraries: all found, each from the right place, and one of each runtime.

Two OpenMP runtimes in a process start two thread pools and can deadlock or abort; two libstdc++
miss each other's symbols; a library of the build that is shadowed by the system's means that what
gets measured is not what was built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final

from torchyard.build.verify.check import Checked, Subject
from torchyard.build.verify.linkage import CheckedLibrary, read_links
from torchyard.core.build_record import CheckFinding, FindingLevel, LinkedLibrary

__all__ = ["check_libraries"]

_OPENMP: Final = {
    "GNU": re.compile(r"libgomp[-.].*"),
    "LLVM": re.compile(r"libomp[-.].*"),
    "Intel": re.compile(r"libiomp5[-.].*"),
    "NVIDIA": re.compile(r"libnvomp[-.].*"),
}
"""The first letters stay when auditwheel renames a copy: libgomp-98b21ff3.so.1.0.0."""
_LIBSTDCXX: Final = re.compile(r"libstdc\+\+[-.].*")
_LIBRARY_FOLDERS: Final = ("lib", "lib64", "lib/*-linux-gnu*")


def check_libraries(subject: Subject) -> Checked:
    """Resolve what the loader would load for the recipe's libraries, and judge it."""
    patterns = subject.component.recipe.verify.libraries
    if not patterns:
        return Checked(findings=tuple(_runtime_findings(subject, ())))
    findings: list[CheckFinding] = []
    paths: list[str] = []
    for pattern in patterns:
        matches = _matches(subject, pattern)
        paths += [path for path in matches if path not in paths]
        if not matches:
            findings.append(
                _finding(
                    "failure",
                    f"no library matches {pattern}",
                    why=f"looked below {', '.join(_places(subject))}",
                    mend="correct verify.libraries in the recipe, or find out why it was not installed",
                )
            )
    checked = read_links(subject, paths)
    if checked is None:
        findings.append(
            _finding(
                "warning",
                "linked libraries are not checked",
                why="the target has no ldd, or it gave no answer",
                mend="install ldd there (Debian: libc-bin)",
            )
        )
        checked = ()
    for library in checked:
        findings += _unresolved(library)
        findings += _build_tree_paths(subject, library)
    findings += _wrong_prefix(subject, checked)
    findings += _runtime_findings(subject, checked)
    return Checked(findings=tuple(findings), libraries=_linked(checked))


def _places(subject: Subject) -> tuple[str, ...]:
    component = subject.component
    tree = (component.tree,) if subject.editable else ()
    return tuple(filter(None, (*tree, *subject.environment.site, component.prefix)))


def _matches(subject: Subject, pattern: str) -> list[str]:
    if pattern.startswith("/") or ".." in PurePath(pattern).parts:
        return []
    found: list[str] = []
    for place in _places(subject):
        outside = subject.outside(place)
        found += [
            str(PurePath(place) / path.relative_to(outside))
            for path in sorted(outside.glob(pattern))
            if path.is_file() or path.is_symlink()
        ]
    return found


def _unresolved(library: CheckedLibrary) -> Iterator[CheckFinding]:
    name = PurePath(library.path).name
    for link in library.links:
        if not link.path:
            direct = link.name in library.dynamic.needed
            yield _finding(
                "failure",
                f"{name} needs {link.name}, which is not found",
                why=f"asked for by {name} itself"
                if direct
                else f"asked for by a library that {name} needs",
                mend=f"install what provides {link.name}, or put its folder into the recipe's environment.libraries",
            )
    for version, lacking in library.missing_versions:
        yield _finding(
            "failure",
            f"{name} needs {version}, which {lacking} does not have",
            why="it was linked against a newer copy than the one that the loader finds first",
            mend="put the folder of the newer copy first in environment.libraries, or build with the older one",
        )


def _build_tree_paths(subject: Subject, library: CheckedLibrary) -> Iterator[CheckFinding]:
    if subject.editable:
        return
    tree = subject.component.tree
    name = PurePath(library.path).name
    taken = [link.path for link in library.links if _below(link.path, (tree,))]
    for path in taken:
        yield _finding(
            "failure",
            f"{name} takes {PurePath(path).name} from the build tree",
            why=f"the loader finds {path}; it is gone when the tree is cleaned",
            mend="install that library, too, and let the installed RPATH point to it",
        )
    into = [
        path for path in (*library.dynamic.rpath, *library.dynamic.runpath) if _below(path, (tree,))
    ]
    if into and not taken:
        yield _finding(
            "warning",
            f"the search path of {name} leads into the build tree",
            why=f"RPATH or RUNPATH has {', '.join(into)}",
            mend="set CMAKE_INSTALL_RPATH, or CMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        )


def _wrong_prefix(subject: Subject, checked: Sequence[CheckedLibrary]) -> Iterator[CheckFinding]:
    """A library that exists in the prefix or the environment, and is taken from elsewhere."""
    component, environment = subject.component, subject.environment
    own = [component.prefix, *environment.site]
    if environment.prefix not in ("/usr", "/usr/local", ""):
        own.append(environment.prefix)
    places = (*own, *(str(subject.outside(place).resolve()) for place in own))
    built = _libraries_in(subject, own)
    seen: set[tuple[str, str]] = set()
    for library in checked:
        for link in library.links:
            mine = built.get(link.name)
            if mine is None or not link.path or (link.name, link.path) in seen:
                continue
            if _below(link.path, places):
                continue
            seen.add((link.name, link.path))
            yield _finding(
                "failure",
                f"{link.name} is taken from {link.path}, not from the build",
                why=f"{PurePath(library.path).name} needs it, and {mine} exists",
                mend=f"put {PurePath(mine).parent} first in environment.libraries, or into the RPATH",
            )


def _libraries_in(subject: Subject, places: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place in places:
        outside = subject.outside(place)
        for folder in _LIBRARY_FOLDERS:
            for path in sorted(outside.glob(f"{folder}/lib*.so*")):
                found.setdefault(path.name, str(PurePath(place) / path.relative_to(outside)))
    return found


def _runtime_findings(
    subject: Subject, checked: Sequence[CheckedLibrary]
) -> Iterator[CheckFinding]:
    paths = {link.path for library in checked for link in library.links if link.path}
    paths |= set(subject.module.loaded if subject.module is not None else ())
    runtimes = {
        family: copies
        for family, pattern in _OPENMP.items()
        if (copies := sorted(path for path in paths if pattern.fullmatch(PurePath(path).name)))
    }
    copies = [path for family in runtimes.values() for path in family]
    if len(runtimes) > 1:
        yield _finding(
            "failure",
            f"{len(runtimes)} OpenMP runtimes come together: {' and '.join(runtimes)}",
            why=", ".join(copies),
            mend="build every component with one compiler's OpenMP, or take the package out that brings the other",
        )
    elif len(copies) > 1:
        yield _finding(
            "warning",
            f"{len(copies)} copies of one OpenMP runtime come together",
            why=f"each has its own threads: {', '.join(copies)}",
            mend="take the package out that brings its own copy, or let both find one file",
        )
    standard = sorted(path for path in paths if _LIBSTDCXX.fullmatch(PurePath(path).name))
    if len(standard) > 1:
        yield _finding(
            "failure",
            f"{len(standard)} copies of libstdc++ come together",
            why=", ".join(standard),
            mend="let every library find the newest one: its folder first in environment.libraries",
        )


def _linked(checked: Sequence[CheckedLibrary]) -> tuple[LinkedLibrary, ...]:
    wanted: dict[tuple[str, str], list[str]] = {}
    for library in checked:
        for link in library.links:
            wanted.setdefault((link.name, link.path), []).append(PurePath(library.path).name)
    return tuple(
        LinkedLibrary(name=name, path=path, wanted_by=tuple(sorted(set(by))))
        for (name, path), by in sorted(wanted.items())
    )


def _below(path: str, places: Iterable[str]) -> bool:
    return bool(path) and any(place and Path(path).is_relative_to(place) for place in places)


def _finding(level: FindingLevel, what: str, *, why: str, mend: str) -> CheckFinding:
    return CheckFinding(check="libraries", level=level, what=what, why=why, mend=mend)

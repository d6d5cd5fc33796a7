"""Check linked libraries: all found, each from the right folder, and one copy of each runtime.

Reads the dynamic section of ELF files and determines which file the loader of the target uses for
each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

from torchyard.builds.record import CheckFinding, CheckResult, FindingLevel, LinkedLibrary
from torchyard.builds.verify.target_python import RunInTarget, Subject, has_device

_MOST_ENTRIES: Final = 100_000
"""A damaged file may lack the entry that ends the dynamic section."""


@dataclass(frozen=True, kw_only=True)
class DynamicSection:
    """The entries of a shared library that the loader uses."""

    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    """Old style: also applies to the dependencies of the library."""
    runpath: tuple[str, ...] = ()


def read_dynamic(path: Path) -> DynamicSection | None:
    """Return the dynamic section; None for a file that is damaged or not a dynamic ELF file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    entries: dict[str, list[str]] = {"soname": [], "needed": [], "rpath": [], "runpath": []}
    try:
        with path.open("rb") as file:
            dynamic = next(ELFFile(file).iter_segments("PT_DYNAMIC"), None)
            if not isinstance(dynamic, DynamicSegment):
                return None
            for tag in islice(dynamic.iter_tags(), _MOST_ENTRIES):
                name = str(tag.entry.d_tag).removeprefix("DT_").lower()
                if name in entries:
                    entries[name].append(getattr(tag, name))
    except (ELFError, AssertionError, OSError, ValueError, OverflowError):  # damaged files
        return None
    return DynamicSection(
        soname=next(iter(entries["soname"]), ""),
        needed=tuple(entries["needed"]),
        rpath=_folders(entries["rpath"]),
        runpath=_folders(entries["runpath"]),
    )


def _folders(texts: list[str]) -> tuple[str, ...]:
    return tuple(folder for text in texts for folder in text.split(":") if folder)


_DRIVER: Final = re.compile(r"libcuda\.so|libnvidia-|libnvcuvid\.so")
_LINK: Final = re.compile(r"\s+(?P<name>\S.*?) => (?P<path>/.*?|not found)(?: \(0x[0-9a-f]+\))?")
# Message of the loader: FILE: OTHER: version `GLIBCXX_3.4.32' not found (required by FILE)
_VERSION: Final = re.compile(
    r"(?:.*: )?(?P<path>/[^:]+): version `(?P<version>[^']+)' not found \(required by (?P<by>.+)\)"
)


@dataclass(frozen=True, kw_only=True)
class LibraryLink:
    """A library that is needed, directly or indirectly."""

    name: str
    path: str
    """Real path in the target; empty if it is not found."""


@dataclass(frozen=True, kw_only=True)
class CheckedLibrary:
    """A library that the recipe checks."""

    path: str
    dynamic: DynamicSection
    links: tuple[LibraryLink, ...] = ()
    missing_versions: tuple[tuple[str, str], ...] = field(default=())
    """(version, library that lacks it)."""


def read_links(subject: Subject, paths: Sequence[str]) -> tuple[CheckedLibrary, ...] | None:
    """Return the links of each file; None if the target has no `ldd`."""
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
    links = _parse_ldd(done.stdout, files)
    versions = _parse_versions(done.stdout + "\n" + done.stderr)
    everything = {path for linked in links.values() for _, path in linked if path}
    real = real_paths(subject.run, (*files, *sorted(everything)), root=subject.root)
    loaded = _loaded_by_soname(subject)
    # All paths, not one per name: torch and an extension may both have a `_C.so`.
    in_process = set(subject.module.loaded if subject.module is not None else ())
    result: list[CheckedLibrary] = []
    for file in files:
        section = dynamic[file]
        assert section is not None  # noqa: S101 - `files` contains only those with one
        by_name = loaded if real.get(file, file) in in_process else {}
        result.append(
            CheckedLibrary(
                path=file,
                dynamic=section,
                links=tuple(
                    LibraryLink(name=name, path=by_name.get(name) or real.get(path, path))
                    for name, path in links.get(file, ())
                ),
                missing_versions=tuple(
                    (version, lacking) for version, lacking, by in versions if by == file
                ),
            )
        )
    return tuple(result)


def real_paths(run: RunInTarget, paths: Sequence[str], *, root: str) -> dict[str, str]:
    """Return path -> real path, with symbolic links resolved inside the target."""
    if not root:
        return {path: os.path.realpath(path) for path in paths}
    unique = tuple(dict.fromkeys(paths))
    try:
        done = run(("realpath", "-z", "-m", "--", *unique), {})
    except OSError:
        return {}
    resolved = done.stdout.split("\0")[:-1]
    if done.returncode != 0 or len(resolved) != len(unique):
        return {}
    return dict(zip(unique, resolved, strict=True))


def _loaded_by_soname(subject: Subject) -> dict[str, str]:
    paths: dict[str, str] = {}
    for path in subject.module.loaded if subject.module is not None else ():
        section = read_dynamic(subject.outside(path))
        name = section.soname if section is not None and section.soname else ""
        paths.setdefault(name or os.path.basename(path), path)  # noqa: PTH119 - of the target
    return paths


def _parse_ldd(text: str, files: Sequence[str]) -> Mapping[str, list[tuple[str, str]]]:
    """Return file -> (name, path) of its dependencies; the path is empty if not found.

    With several files, `ldd` prints a line `FILE:` before each block.
    """
    links: dict[str, list[tuple[str, str]]] = {}
    current = files[0] if len(files) == 1 else ""
    for line in text.splitlines():
        if not line.startswith(("\t", " ")) and line.endswith(":") and line[:-1] in files:
            current = line[:-1]
            continue
        match = _LINK.fullmatch(line)
        if match is not None and current:
            path = "" if match["path"] == "not found" else match["path"]
            links.setdefault(current, []).append((match["name"], path))
    return links


def _parse_versions(text: str) -> list[tuple[str, str, str]]:
    matches = (_VERSION.fullmatch(line.strip()) for line in text.splitlines())
    return [(match["version"], match["path"], match["by"]) for match in matches if match]


_OPENMP: Final = {
    "GNU": re.compile(r"libgomp[-.].*"),
    "LLVM": re.compile(r"libomp[-.].*"),
    "Intel": re.compile(r"libiomp5[-.].*"),
    "NVIDIA": re.compile(r"libnvomp[-.].*"),
}
"""auditwheel keeps the first letters when it renames a copy: libgomp-98b21ff3.so.1.0.0."""
_LIBSTDCXX: Final = re.compile(r"libstdc\+\+[-.].*")
_LIBRARY_FOLDERS: Final = ("lib", "lib64", "lib/*-linux-gnu*")


def check_libraries(subject: Subject) -> CheckResult:
    """Resolve the dependencies of the libraries of the recipe and check them."""
    patterns = subject.component.recipe.verify.libraries
    if not patterns:
        return CheckResult(findings=tuple(_runtime_findings(subject, ())))
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
                    why=f"searched in {', '.join(_places(subject))}",
                    fix="correct verify.libraries in the recipe, or find out why it was not installed",
                )
            )
    checked = read_links(subject, paths)
    if checked is None:
        findings.append(
            _finding(
                "warning",
                "linked libraries were not checked",
                why="the target has no ldd, or ldd printed nothing",
                fix="install ldd in the target (Debian: libc-bin)",
            )
        )
        checked = ()
    for library in checked:
        findings += _unresolved(subject, library)
        findings += _build_tree_paths(subject, library)
    findings += _wrong_prefix(subject, checked)
    findings += _runtime_findings(subject, checked)
    return CheckResult(findings=tuple(findings), libraries=_linked(checked))


def _places(subject: Subject) -> tuple[str, ...]:
    component = subject.component
    tree = (component.tree,) if subject.editable else ()
    return tuple(filter(None, (*tree, *subject.environment.site, component.prefix)))


def _matches(subject: Subject, pattern: str) -> list[str]:
    if pattern.startswith("/") or ".." in PurePath(pattern).parts:
        return []
    matches: list[str] = []
    for place in _places(subject):
        outside = subject.outside(place)
        matches += [
            str(PurePath(place) / path.relative_to(outside))
            for path in sorted(outside.glob(pattern))
            if path.is_file() or path.is_symlink()
        ]
    return matches


def _unresolved(subject: Subject, library: CheckedLibrary) -> Iterator[CheckFinding]:
    name = PurePath(library.path).name
    for link in library.links:
        if (
            not link.path
            and _DRIVER.match(link.name)
            and not has_device("cuda", subject.device_folder)
        ):
            yield _finding(
                "warning",
                f"{name} needs {link.name} of the NVIDIA driver, which this machine does not have",
                why="the driver is installed where the result is used",
                fix="",
            )
        elif not link.path:
            direct = link.name in library.dynamic.needed
            yield _finding(
                "failure",
                f"{name} needs {link.name}, which was not found",
                why=f"a direct dependency of {name}"
                if direct
                else f"a dependency of a library that {name} needs",
                fix=f"install {link.name}, or add its folder to environment.libraries in the recipe",
            )
    for version, lacking in library.missing_versions:
        yield _finding(
            "failure",
            f"{name} needs {version}, which {lacking} does not have",
            why="it was linked with a newer copy than the one that the loader finds first",
            fix="put the folder of the newer copy first in environment.libraries, or build with the older"
            " one",
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
            f"{name} loads {PurePath(path).name} from the build tree",
            why=f"the loader finds {path}, which is removed when the tree is cleaned",
            fix="also install that library, and set the installed RPATH to its folder",
        )
    into = [
        path for path in (*library.dynamic.rpath, *library.dynamic.runpath) if _below(path, (tree,))
    ]
    if into and not taken:
        yield _finding(
            "warning",
            f"the search path of {name} contains the build tree",
            why=f"RPATH or RUNPATH contains {', '.join(into)}",
            fix="set CMAKE_INSTALL_RPATH, or CMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        )


def _wrong_prefix(subject: Subject, checked: Sequence[CheckedLibrary]) -> Iterator[CheckFinding]:
    """Find libraries of the prefix or the environment that are loaded from elsewhere."""
    component, environment = subject.component, subject.environment
    own = [component.prefix, *environment.site]
    if environment.prefix not in ("/usr", "/usr/local", ""):
        own.append(environment.prefix)
    places = (*own, *(str(subject.outside(place).resolve()) for place in own))
    built = _libraries_in(subject, own)
    reported: set[tuple[str, str]] = set()
    for library in checked:
        for link in library.links:
            expected = built.get(link.name)
            if expected is None or not link.path or (link.name, link.path) in reported:
                continue
            if _below(link.path, places):
                continue
            reported.add((link.name, link.path))
            yield _finding(
                "failure",
                f"{link.name} is loaded from {link.path}, not from the build",
                why=f"{PurePath(library.path).name} needs it, and {expected} exists",
                fix=f"put {PurePath(expected).parent} first in environment.libraries, or into the RPATH",
            )


def _libraries_in(subject: Subject, places: Iterable[str]) -> dict[str, str]:
    libraries: dict[str, str] = {}
    for place in places:
        outside = subject.outside(place)
        for folder in _LIBRARY_FOLDERS:
            for path in sorted(outside.glob(f"{folder}/lib*.so*")):
                libraries.setdefault(path.name, str(PurePath(place) / path.relative_to(outside)))
    return libraries


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
            f"{len(runtimes)} OpenMP runtimes in one process: {' and '.join(runtimes)}",
            why=", ".join(copies),
            fix="build every component with the OpenMP of one compiler, or remove the package that bundles"
            " the other",
        )
    elif len(copies) > 1:
        yield _finding(
            "warning",
            f"{len(copies)} copies of one OpenMP runtime in one process",
            why=f"each has its own threads: {', '.join(copies)}",
            fix="remove the package that bundles its own copy, or make both load the same file",
        )
    standard = sorted(path for path in paths if _LIBSTDCXX.fullmatch(PurePath(path).name))
    if len(standard) > 1:
        yield _finding(
            "failure",
            f"{len(standard)} copies of libstdc++ in one process",
            why=", ".join(standard),
            fix="put the folder of the newest one first in environment.libraries",
        )


def _linked(checked: Sequence[CheckedLibrary]) -> tuple[LinkedLibrary, ...]:
    needed_by: dict[tuple[str, str], list[str]] = {}
    for library in checked:
        for link in library.links:
            needed_by.setdefault((link.name, link.path), []).append(PurePath(library.path).name)
    return tuple(
        LinkedLibrary(name=name, path=path, wanted_by=tuple(sorted(set(by))))
        for (name, path), by in sorted(needed_by.items())
    )


def _below(path: str, places: Iterable[str]) -> bool:
    return bool(path) and any(place and Path(path).is_relative_to(place) for place in places)


def _finding(level: FindingLevel, what: str, *, why: str, fix: str) -> CheckFinding:
    return CheckFinding(check="libraries", level=level, what=what, why=why, fix=fix)

"""Finding programs and asking them for their versions; answers are remembered in a file.

Knows how each program spells its version. Does not know which versions are good: that is the
coupling table's business.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.errors import TorchyardError
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["TOOL_NAMES", "Tool", "Toolbox", "find_tool", "installed_versions"]

_LIMIT_S: Final = 30.0
_NUMBER: Final = r"(\d+(?:\.\d+)+)"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program that was found and what it says about itself."""

    name: str
    """What was asked for, such as `cmake`."""
    path: str
    version: str
    """Empty when it gave no answer that could be understood; `raw` says what it did say."""
    raw: str
    family: str = ""
    """`gcc` or `clang` for compilers, whatever name they were found under."""


@dataclass(frozen=True, kw_only=True)
class _Spelling:
    """How a program is found and read."""

    programs: tuple[str, ...]
    pattern: str
    arguments: tuple[str, ...] = ("--version",)


# The version of GCC stands behind the packager's brackets: `g++ (Debian 12.2.0-14) 12.2.0`. Programs
# that call themselves cc may be clang, which says so.
_GNU_PATTERN: Final = rf"(?m)^[^\n(]*\([^\n)]*\)\s+{_NUMBER}"
_CLANG_PATTERN: Final = rf"clang version {_NUMBER}"
_COMPILERS: Final = ("cc", "c++", "gcc", "g++", "clang", "clang++")

_SPELLINGS: Final[Mapping[str, _Spelling]] = {
    **{name: _Spelling(programs=(name,), pattern=_GNU_PATTERN) for name in _COMPILERS},
    "gfortran": _Spelling(programs=("gfortran",), pattern=_GNU_PATTERN),
    "cmake": _Spelling(programs=("cmake",), pattern=rf"cmake version {_NUMBER}"),
    "ninja": _Spelling(programs=("ninja", "ninja-build"), pattern=rf"^{_NUMBER}"),
    "nvcc": _Spelling(programs=("nvcc",), pattern=rf"release [\d.]+, V{_NUMBER}"),
    "hipcc": _Spelling(programs=("hipcc",), pattern=rf"HIP version: {_NUMBER}"),
    "ld": _Spelling(programs=("ld",), pattern=rf"(?m)^GNU (?:ld|gold) .*?{_NUMBER}\S*$"),
    "mold": _Spelling(programs=("mold", "ld.mold"), pattern=rf"mold {_NUMBER}"),
    "lld": _Spelling(programs=("ld.lld", "lld"), pattern=rf"LLD {_NUMBER}"),
    "python": _Spelling(programs=("python3", "python"), pattern=rf"Python {_NUMBER}"),
    "git": _Spelling(programs=("git",), pattern=rf"git version {_NUMBER}"),
    "ccache": _Spelling(programs=("ccache",), pattern=rf"ccache version {_NUMBER}"),
    "sccache": _Spelling(programs=("sccache",), pattern=rf"sccache {_NUMBER}"),
    "scons": _Spelling(programs=("scons",), pattern=rf"SCons: v?{_NUMBER}"),
    "patchelf": _Spelling(programs=("patchelf",), pattern=rf"patchelf {_NUMBER}"),
    "curl": _Spelling(programs=("curl",), pattern=rf"curl {_NUMBER}"),
    "apt-get": _Spelling(programs=("apt-get",), pattern=rf"apt {_NUMBER}"),
    "dpkg-source": _Spelling(programs=("dpkg-source",), pattern=rf"version {_NUMBER}"),
    "mmdebstrap": _Spelling(programs=("mmdebstrap",), pattern=rf"mmdebstrap {_NUMBER}"),
    "debootstrap": _Spelling(programs=("debootstrap",), pattern=rf"debootstrap {_NUMBER}"),
    "glibc": _Spelling(programs=("ldd",), pattern=rf"ldd \([^)]*\) {_NUMBER}"),
}

TOOL_NAMES: Final = tuple(_SPELLINGS)


@dataclass(kw_only=True)
class Toolbox:
    """Programs of one search path; what they said is remembered while the file stays the same."""

    search_path: str
    cache_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the programs that are asked; their PATH is the search path."""
    _known: dict[str, Any] = field(init=False, default_factory=dict)
    _asked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Read what earlier runs were told; a file that can't be read is as good as none."""
        if self.cache_file is not None:
            with suppress(OSError, ValueError, RecursionError):
                known = json.loads(self.cache_file.read_bytes())
                self._known = known if isinstance(known, dict) else {}

    def find(self, name: str) -> Tool | None:
        """The first program of that name (or at that path), with its version; None if none."""
        path = self.find_path(name)
        return None if path is None else self._described(name, path, _spelling(name))

    def find_path(self, name: str) -> str | None:
        """Where the program is, without asking it anything."""
        for program in (name,) if "/" in name else _spelling(name).programs:
            path = _executable(program, self.search_path)
            if path is not None:
                return path
        return None

    def version(self, name: str) -> str:
        """The version of a program; empty when it is not there or does not say."""
        tool = self.find(name)
        return tool.version if tool else ""

    def save(self) -> None:
        """Remember for the next run; a disk that can't be written to costs only time."""
        if self.cache_file is None or not self._asked:
            return
        with suppress(OSError, TorchyardError):
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.cache_file, to_json_text(self._known))
            self._asked = False

    def _described(self, name: str, path: str, spelling: _Spelling) -> Tool:
        facts = Path(path).stat()
        # The stamp is that of the file behind links: `gcc` stays and `gcc-12` changes under it.
        stamp = [facts.st_mtime_ns, facts.st_size, facts.st_ino]
        key = " ".join((path, *spelling.arguments))
        known = self._known.get(key)
        if isinstance(known, dict) and known.get("stamp") == stamp:
            with suppress(KeyError, TypeError):
                return Tool(name=name, path=path, **{k: str(known[k]) for k in _REMEMBERED})
        tool = _read(name, path, _ask(path, spelling.arguments, self._environ()), spelling)
        if tool.version:
            described = encode(tool)
            self._known[key] = {"stamp": stamp, **{k: described[k] for k in _REMEMBERED}}
            self._asked = True
        return tool

    def _environ(self) -> dict[str, str]:
        return {**self.variables, "PATH": self.search_path, "LC_ALL": "C"}


_REMEMBERED: Final = ("version", "raw", "family")


def find_tool(name: str, path: str | None = None, *, cache_file: Path | None = None) -> Tool | None:
    """One program of a search path (PATH when none is given); see Toolbox for many."""
    box = Toolbox(
        search_path=os.environ.get("PATH", os.defpath) if path is None else path,
        cache_file=cache_file,
        variables=os.environ,
    )
    tool = box.find(name)
    box.save()
    return tool


def installed_versions(
    python: str, distributions: tuple[str, ...], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Versions of packages that an interpreter sees; those it does not see are left out.

    Asked anew each time: packages come and go while the interpreter's file stays the same.
    """
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    # `-c` puts the working folder into the module path, and packages there must not count.
    text = _ask(python, ("-c", program, *distributions), environ, folder="/")
    with suppress(ValueError, IndexError):
        found = json.loads(text.strip().splitlines()[-1])
        if isinstance(found, dict):
            return {str(name): str(version) for name, version in found.items()}
    return {}


def _spelling(name: str) -> _Spelling:
    """How to read a program; one with a path or a suffix (`g++-12`) reads as its plain name."""
    plain = re.sub(r"-\d+(\.\d+)*$", "", Path(name).name)
    known = _SPELLINGS.get(plain) or _SPELLINGS.get(plain.rsplit("-", 1)[-1])
    if known is None and plain.startswith("python"):
        known = _SPELLINGS["python"]
    pattern = known.pattern if known else _NUMBER
    arguments = known.arguments if known else ("--version",)
    programs = known.programs if known and name in _SPELLINGS else (name,)
    return _Spelling(programs=programs, pattern=pattern, arguments=arguments)


def _executable(program: str, search_path: str) -> str | None:
    if "/" in program:
        return program if os.access(program, os.X_OK) and Path(program).is_file() else None
    for folder in search_path.split(os.pathsep):
        path = Path(folder or ".") / program
        # Not `shutil.which`: with an empty search path that one falls back to the process's own.
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    return None


def _ask(
    program: str,
    arguments: tuple[str, ...],
    environ: Mapping[str, str] | None,
    folder: str | None = None,
) -> str:
    try:
        done = subprocess.run(
            (program, *arguments),
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace")


def _read(name: str, path: str, raw: str, spelling: _Spelling) -> Tool:
    family = ""
    found = re.search(spelling.pattern, raw)
    if spelling.pattern == _GNU_PATTERN:
        clang = re.search(_CLANG_PATTERN, raw)
        found = clang or found
        family = "clang" if clang else "gcc" if found else ""
    return Tool(
        name=name,
        path=path,
        version=found[1] if found else "",
        raw=raw.strip()[:2000],
        family=family,
    )

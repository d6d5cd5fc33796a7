"""Asks a real compiler where it looks for headers, in which order, and what it leaves out.

Reads what `-v` prints, which gcc, clang, hipcc and conda's compilers spell alike. Judges nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.build.doctor.patient import Patient

__all__ = ["SearchList", "ask_search_list", "asked_folders", "header_flags", "parse_search_list"]

_QUOTED: Final = '#include "..." search starts here:'
_ANGLED: Final = "#include <...> search starts here:"
_END: Final = "End of search list."
_MISSING: Final = "ignoring nonexistent directory "
_DUPLICATE: Final = "ignoring duplicate directory "
_TAKES_FOLDER: Final = ("-I", "-isystem", "-iquote", "-idirafter")
_KEEPS: Final = ("--gcc-install-dir", "--gcc-toolchain", "--sysroot", "-isysroot", "-nostdinc")


@dataclass(frozen=True, kw_only=True)
class SearchList:
    """Header folders of one compiler."""

    compiler: str
    folders: tuple[str, ...]
    """In the order they are searched, as the compiler spells them."""
    missing: tuple[str, ...] = ()
    """Asked for, but not there."""
    duplicates: tuple[str, ...] = ()
    """Asked for, and left out because they come later anyway."""

    def owners(self, header: str) -> tuple[str, ...]:
        """Folders that have the header; the first one wins."""
        return tuple(folder for folder in self.folders if (Path(folder) / header).is_file())

    def place(self, folder: str) -> int | None:
        """Where a folder stands; None when it is not searched."""
        wanted = Path(folder).resolve()
        for index, item in enumerate(self.folders):
            if Path(item).resolve() == wanted:
                return index
        return None


def header_flags(patient: Patient) -> tuple[str, ...]:
    """Flags of the build that say where headers are: -I and its like, --gcc-install-dir."""
    words = [*patient.words("CPPFLAGS"), *patient.words("CXXFLAGS")]
    # PyTorch uses CFLAGS for C++ where CXXFLAGS is not set.
    return tuple(_kept(words or patient.words("CFLAGS")))


def asked_folders(patient: Patient, flags: Sequence[str]) -> tuple[str, ...]:
    """Folders that are asked for, first to last: by flags, then by variables."""
    found = [word.removeprefix("-I") for word in flags if word.startswith("-I")]
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        found += patient.variables.get(name, "").split(":")
    return tuple(dict.fromkeys(folder for folder in found if folder))


def _kept(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _TAKES_FOLDER:
            # `-I folder` and `-Ifolder` mean the same; one spelling is enough for what follows.
            folder = next(rest, "")
            kept += [f"-I{folder}"] if word == "-I" else [word, folder]
        elif word.startswith(("-I", *_KEEPS)):
            kept.append(word)
    return kept


def ask_search_list(
    patient: Patient, compiler: str, *, flags: Sequence[str] = (), language: str = "c++"
) -> SearchList | None:
    """The compiler's own answer; None when it has none that can be understood."""
    with tempfile.TemporaryDirectory(prefix="torchyard-doctor-") as folder:
        suffix = {"hip": "hip", "c": "c"}.get(language, "cpp")
        source = Path(folder) / f"empty.{suffix}"
        source.write_bytes(b"")
        # hipcc decides by the name of the file, compilers by -x.
        kind = () if language == "hip" else ("-x", language)
        said = patient.ask((compiler, "-E", *kind, "-v", *flags, str(source)), folder=Path(folder))
    return parse_search_list(compiler, said.text)


def parse_search_list(compiler: str, text: str) -> SearchList | None:
    """The search list in what a compiler printed; the last one where there are several.

    hipcc compiles for the device first and for the host last, and the host's list is the one that
    ordinary headers follow.
    """
    folders: list[str] = []
    current: list[str] | None = None
    missing: list[str] = []
    duplicates: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MISSING):
            missing.append(line.removeprefix(_MISSING).strip().strip('"'))
        elif line.startswith(_DUPLICATE):
            duplicates.append(line.removeprefix(_DUPLICATE).strip().strip('"'))
        elif line.startswith(_QUOTED):
            current = []
        elif line.startswith(_ANGLED):
            current = current if current is not None else []
        elif line.startswith(_END):
            folders, current = current or [], None
        elif current is not None and line.startswith(" "):
            current.append(line.strip().removesuffix(" (framework directory)"))
    if not folders:
        return None
    return SearchList(
        compiler=compiler,
        folders=tuple(dict.fromkeys(folders)),
        missing=tuple(dict.fromkeys(missing)),
        duplicates=tuple(dict.fromkeys(duplicates)),
    )

"""Check: which copy of a header is found first, according to the real compiler.

The compiler is asked for its header search list: which folders, in which order, and which it
ignores.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.doctor.context import Check, Patient
from torchyard.builds.doctor.finding import DoctorFinding

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


HEADERS: Final = (
    "thrust/version.h",
    "cub/version.cuh",
    "hip/hip_runtime.h",
    "rocblas/rocblas.h",
    "cuda_runtime.h",
    "cudnn_version.h",
    "omp.h",
    "google/protobuf/message.h",
    "mkl.h",
    "cblas.h",
    "oneapi/dnnl/dnnl.h",
    "fmt/core.h",
    "pybind11/pybind11.h",
    "gtest/gtest.h",
    "glog/logging.h",
    "Eigen/Core",
    "torch/extension.h",
)
"""Headers that are often there more than once and do not agree with each other."""

_ROCM_HEADERS: Final = ("thrust/version.h", "hip/hip_runtime.h", "rocblas/rocblas.h", "omp.h")
_PROTOBUF: Final = "google/protobuf/message.h"


def _examine_include_order(patient: Patient) -> Iterator[DoctorFinding]:
    if patient.tools_come_later:
        return
    flags = header_flags(patient)
    if patient.cxx is not None:
        listed = ask_search_list(patient, patient.cxx.path, flags=flags)
        if listed is None:
            yield _no_answer(patient.cxx.path)
        else:
            yield from _common(patient, listed, flags)
    if patient.wants_rocm and patient.hipcc is not None:
        listed = ask_search_list(patient, patient.hipcc.path, flags=flags, language="hip")
        if listed is None:
            yield _no_answer(patient.hipcc.path)
        else:
            yield from _hipcc_trap(patient, listed, flags)
            yield _order(listed)


def _common(
    patient: Patient, listed: SearchList, flags: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    asked = asked_folders(patient, flags)
    yield from _foreign_protobuf(patient, listed, asked)
    yield from _foreign_openmp(patient, listed)
    yield from _torch_headers(listed)
    gone = [folder for folder in asked if folder in listed.missing and not _coming(patient, folder)]
    if gone:
        yield DoctorFinding(
            check=INCLUDE_ORDER_CHECK.name,
            severity="warns",
            what=f"header folders that are not there: {', '.join(gone)}",
            why="the compiler passes them over, and takes the headers from elsewhere",
            mend="mend -I in CXXFLAGS, or CPATH",
        )
    yield _order(listed)


def _coming(patient: Patient, folder: str) -> bool:
    """Whether the build itself will make the folder."""
    return patient.plan is not None and Path(folder).is_relative_to(patient.plan.folder)


def _hipcc_trap(
    patient: Patient, listed: SearchList, flags: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    """Hipcc puts ROCm's own include folder last, whatever -I says (ROCm/HIP issue 3587)."""
    rocm = f"{patient.rocm_path}/include"
    asked = asked_folders(patient, flags)
    wanted = [folder for folder in asked if Path(folder).resolve() == Path(rocm).resolve()]
    place = listed.place(rocm)
    if not wanted or place is None:
        return
    behind = asked[asked.index(wanted[0]) + 1 :]
    before = [
        folder for folder in behind if (at := listed.place(folder)) is not None and at < place
    ]
    if not before:
        return
    lost = [
        f"{header}: {owners[0]} wins over {rocm}"
        for header in _ROCM_HEADERS
        if (owners := listed.owners(header)) and len(owners) > 1 and owners[0] in before
    ]
    copy = f"{before[0].removesuffix('/include')}/rocm-include"
    yield DoctorFinding(
        check=INCLUDE_ORDER_CHECK.name,
        severity="blocks" if lost else "warns",
        what=f"hipcc searches {rocm} behind {', '.join(before)}, although it was asked for first",
        why="hipcc moves ROCm's own folder to the end of the list, so that the environment's"
        " thrust, OpenMP and others win",
        mend=f"cp -rLT {shlex.quote(rocm)} {shlex.quote(copy)}, and use -I{copy} in place of"
        f" -I{rocm}: a folder of another name stays where it is put",
        detail=tuple(lost),
    )


def _foreign_protobuf(
    patient: Patient, listed: SearchList, asked: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    owners = listed.owners(_PROTOBUF)
    pytorch = any(
        (facts := patient.facts(recipe)) is not None and facts.project == "pytorch"
        for recipe in patient.recipes
    )
    system = any(
        str(recipe.options.get("USE_SYSTEM_LIBS", "")).lower() in {"true", "on", "1"}
        for recipe in patient.recipes
    )
    if pytorch and not system and owners and owners[0] in asked:
        yield DoctorFinding(
            check=INCLUDE_ORDER_CHECK.name,
            severity="warns",
            what=f"the protobuf of {owners[0]} comes before PyTorch's own",
            why="`generated by a newer version of protoc` is what its headers say to code made by"
            " another version",
            mend=f"take protobuf out of {owners[0]}, or the folder out of CPATH and CXXFLAGS;"
            " keep BUILD_CUSTOM_PROTOBUF=ON",
        )


def _foreign_openmp(patient: Patient, listed: SearchList) -> Iterator[DoctorFinding]:
    owners = listed.owners("omp.h")
    if patient.cxx is None or not owners:
        return
    own = patient.ask((patient.cxx.path, "-print-file-name=include")).text.strip()
    has_own = (Path(own) / "omp.h").is_file()
    if has_own and Path(owners[0]).resolve() != Path(own).resolve():
        yield DoctorFinding(
            check=INCLUDE_ORDER_CHECK.name,
            severity="warns",
            what=f"omp.h of {owners[0]} wins over the compiler's own",
            why=f"{patient.cxx.path} links its own OpenMP runtime, which belongs to {own}/omp.h",
            mend=f"take {owners[0]} out of CPATH and CXXFLAGS, or put it behind with -idirafter",
        )


def _torch_headers(listed: SearchList) -> Iterator[DoctorFinding]:
    for owner in listed.owners("torch/extension.h")[:1]:
        yield DoctorFinding(
            check=INCLUDE_ORDER_CHECK.name,
            severity="warns",
            what=f"headers of another PyTorch are found in {owner}",
            why="code that is compiled with them does not fit the torch that is built",
            mend=f"take {owner} out of CPATH and CXXFLAGS",
        )


def _order(listed: SearchList) -> DoctorFinding:
    lines = [f"{index}. {folder}" for index, folder in enumerate(listed.folders, start=1)]
    for header in HEADERS:
        owners = listed.owners(header)
        if owners:
            others = f" (also in {', '.join(owners[1:])})" if len(owners) > 1 else ""
            lines.append(f"{header}: {owners[0]}{others}")
    count = len(listed.folders)
    return DoctorFinding(
        check=INCLUDE_ORDER_CHECK.name,
        severity="notes",
        what=f"{listed.compiler} looks for headers in {count} folder{'' if count == 1 else 's'}",
        why="in this order; the first that has a header wins",
        detail=tuple(lines),
    )


def _no_answer(compiler: str) -> DoctorFinding:
    return DoctorFinding(
        check=INCLUDE_ORDER_CHECK.name,
        severity="notes",
        what=f"{compiler} does not say where it looks for headers",
        why="it was asked with -E -v",
    )


INCLUDE_ORDER_CHECK = Check(
    name="include-order", looks_at="which copy of a header wins", run=_examine_include_order
)

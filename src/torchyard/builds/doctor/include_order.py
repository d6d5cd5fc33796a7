"""Check: which copy of a header the compiler finds first.

Reads the header search list of the compiler (`-E -v`): folders, their order, and those it ignores.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, note, warning

_QUOTED: Final = '#include "..." search starts here:'
_ANGLED: Final = "#include <...> search starts here:"
_END: Final = "End of search list."
_MISSING: Final = "ignoring nonexistent directory "
_TAKES_FOLDER: Final = ("-I", "-isystem", "-iquote", "-idirafter")
_KEEPS: Final = ("--gcc-install-dir", "--gcc-toolchain", "--sysroot", "-isysroot", "-nostdinc")


@dataclass(frozen=True, kw_only=True)
class SearchList:
    """Header folders of one compiler."""

    compiler: str
    folders: tuple[str, ...]
    """In search order, as printed by the compiler."""
    missing: tuple[str, ...] = ()
    """Requested, but nonexistent."""

    def owners(self, header: str) -> tuple[str, ...]:
        """Return the folders that contain the header; the first one is used."""
        return tuple(folder for folder in self.folders if (Path(folder) / header).is_file())

    def index_of(self, folder: str) -> int | None:
        """Return the position of a folder; None if it is not searched."""
        resolved = Path(folder).resolve()
        for index, item in enumerate(self.folders):
            if Path(item).resolve() == resolved:
                return index
        return None


def header_flags(context: DoctorContext) -> tuple[str, ...]:
    """Return the flags of the build that affect the header search: -I, --gcc-install-dir, ..."""
    words = [*context.words("CPPFLAGS"), *context.words("CXXFLAGS")]
    # PyTorch uses CFLAGS for C++ where CXXFLAGS is not set.
    return tuple(_kept(words or context.words("CFLAGS")))


def requested_folders(context: DoctorContext, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the requested header folders: those of flags, then those of variables."""
    folders = [word.removeprefix("-I") for word in flags if word.startswith("-I")]
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        folders += context.variables.get(name, "").split(":")
    return tuple(dict.fromkeys(folder for folder in folders if folder))


def _kept(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _TAKES_FOLDER:
            # `-I folder` and `-Ifolder` mean the same; use one spelling below.
            folder = next(rest, "")
            kept += [f"-I{folder}"] if word == "-I" else [word, folder]
        elif word.startswith(("-I", *_KEEPS)):
            kept.append(word)
    return kept


def read_search_list(
    context: DoctorContext, compiler: str, *, flags: Sequence[str] = (), language: str = "c++"
) -> SearchList | None:
    """Return the search list of a compiler; None if its output cannot be parsed."""
    with tempfile.TemporaryDirectory(prefix="torchyard-doctor-") as folder:
        suffix = {"hip": "hip", "c": "c"}.get(language, "cpp")
        source = Path(folder) / f"empty.{suffix}"
        source.write_bytes(b"")
        # hipcc determines the language from the file name, other compilers from -x.
        kind = () if language == "hip" else ("-x", language)
        argv = (compiler, "-E", *kind, "-v", *flags, str(source))
        result = context.run_program(argv, folder=Path(folder))
    return parse_search_list(compiler, result.text)


def parse_search_list(compiler: str, text: str) -> SearchList | None:
    """Parse the search list in the output of a compiler; the last one if there are several.

    hipcc compiles for the device first and for the host last; ordinary headers follow the list of
    the host.
    """
    folders: list[str] = []
    current: list[str] | None = None
    missing: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MISSING):
            missing.append(line.removeprefix(_MISSING).strip().strip('"'))
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
"""Headers of which there are often several incompatible copies."""

_ROCM_HEADERS: Final = ("thrust/version.h", "hip/hip_runtime.h", "rocblas/rocblas.h", "omp.h")
_PROTOBUF: Final = "google/protobuf/message.h"


def examine_include_order(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check which copy of each header is used."""
    if context.tools_come_later:
        return
    flags = header_flags(context)
    if context.cxx is not None:
        listed = read_search_list(context, context.cxx.path, flags=flags)
        if listed is None:
            yield _no_list(context.cxx.path)
        else:
            yield from _common(context, listed, flags)
    if context.wants_rocm and context.hipcc is not None:
        listed = read_search_list(context, context.hipcc.path, flags=flags, language="hip")
        if listed is None:
            yield _no_list(context.hipcc.path)
        else:
            yield from _hipcc_trap(context, listed, flags)
            yield _order(listed)


def _common(
    context: DoctorContext, listed: SearchList, flags: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    requested = requested_folders(context, flags)
    yield from _foreign_protobuf(context, listed, requested)
    yield from _foreign_openmp(context, listed)
    yield from _torch_headers(listed)
    missing = [
        folder
        for folder in requested
        if folder in listed.missing and not _made_by_build(context, folder)
    ]
    if missing:
        yield warning(
            f"header folders do not exist: {', '.join(missing)}",
            why="the compiler ignores them and may use other copies of the headers",
            fix="correct -I in CXXFLAGS, or CPATH",
        )
    yield _order(listed)


def _made_by_build(context: DoctorContext, folder: str) -> bool:
    """Return whether the build creates the folder."""
    return context.plan is not None and Path(folder).is_relative_to(context.plan.folder)


def _hipcc_trap(
    context: DoctorContext, listed: SearchList, flags: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    """Find folders before the one of ROCm, which hipcc puts last despite -I (ROCm/HIP issue 3587)."""
    rocm = f"{context.rocm_path}/include"
    requested = requested_folders(context, flags)
    same = [folder for folder in requested if Path(folder).resolve() == Path(rocm).resolve()]
    rocm_index = listed.index_of(rocm)
    if not same or rocm_index is None:
        return
    after = requested[requested.index(same[0]) + 1 :]
    before = [
        folder
        for folder in after
        if (index := listed.index_of(folder)) is not None and index < rocm_index
    ]
    if not before:
        return
    shadowed = [
        f"{header}: {owners[0]} is used instead of {rocm}"
        for header in _ROCM_HEADERS
        if (owners := listed.owners(header)) and len(owners) > 1 and owners[0] in before
    ]
    copy = f"{before[0].removesuffix('/include')}/rocm-include"
    yield DoctorFinding(
        severity="blocks" if shadowed else "warns",
        what=f"hipcc searches {rocm} after {', '.join(before)}, although it was requested first",
        why="hipcc moves the include folder of ROCm to the end of the list, so the copies of thrust,"
        " OpenMP and others in the environment are used",
        fix=f"cp -rLT {shlex.quote(rocm)} {shlex.quote(copy)}, and use -I{copy} instead of"
        f" -I{rocm}: hipcc does not move a folder of another name",
        detail=tuple(shadowed),
    )


def _foreign_protobuf(
    context: DoctorContext, listed: SearchList, requested: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    owners = listed.owners(_PROTOBUF)
    pytorch = any(context.pytorch_recipes())
    system = any(
        cmake_bool(str(recipe.options.get("USE_SYSTEM_LIBS", ""))) for recipe in context.recipes
    )
    if pytorch and not system and owners and owners[0] in requested:
        yield warning(
            f"protobuf in {owners[0]} is found before the copy of PyTorch",
            why="its headers reject code generated by another version:"
            " `generated by a newer version of protoc`",
            fix=f"remove protobuf from {owners[0]}, or the folder from CPATH and CXXFLAGS;"
            " keep BUILD_CUSTOM_PROTOBUF=ON",
        )


def _foreign_openmp(context: DoctorContext, listed: SearchList) -> Iterator[DoctorFinding]:
    owners = listed.owners("omp.h")
    if context.cxx is None or not owners:
        return
    own = context.run_program((context.cxx.path, "-print-file-name=include")).text.strip()
    has_own = (Path(own) / "omp.h").is_file()
    if has_own and Path(owners[0]).resolve() != Path(own).resolve():
        yield warning(
            f"omp.h in {owners[0]} is used instead of the one of the compiler",
            why=f"{context.cxx.path} links its own OpenMP runtime, which matches {own}/omp.h",
            fix=f"remove {owners[0]} from CPATH and CXXFLAGS, or add it with -idirafter",
        )


def _torch_headers(listed: SearchList) -> Iterator[DoctorFinding]:
    for owner in listed.owners("torch/extension.h")[:1]:
        yield warning(
            f"{owner} contains headers of another PyTorch",
            why="code compiled with them is incompatible with the torch being built",
            fix=f"remove {owner} from CPATH and CXXFLAGS",
        )


def _order(listed: SearchList) -> DoctorFinding:
    lines = [f"{index}. {folder}" for index, folder in enumerate(listed.folders, start=1)]
    for header in HEADERS:
        owners = listed.owners(header)
        if owners:
            others = f" (also in {', '.join(owners[1:])})" if len(owners) > 1 else ""
            lines.append(f"{header}: {owners[0]}{others}")
    count = len(listed.folders)
    return note(
        f"{listed.compiler} searches {count} folder{'' if count == 1 else 's'} for headers",
        why="in this order; the first folder that contains a header is used",
        detail=tuple(lines),
    )


def _no_list(compiler: str) -> DoctorFinding:
    return note(
        f"the header search list of {compiler} is unknown",
        why="its output with -E -v could not be parsed",
    )

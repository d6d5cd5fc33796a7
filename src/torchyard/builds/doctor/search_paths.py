"""Checks: the build finds the right headers and libraries first.

BLAS must be visible to CMake. LD_LIBRARY_PATH and LD_PRELOAD must not put a wrong library before the
right one, and the libstdc++ that will be loaded must not be older than the one that the compiler
links against. Headers: the search list of the compiler (`-E -v`) shows which copy is used.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
from torchyard.builds.doctor.packages import install_command
from torchyard.builds.recipe import Recipe


def library_folders(context: DoctorContext) -> tuple[str, ...]:
    """Return the folders of LD_LIBRARY_PATH of the build, including empty entries."""
    text = context.variables.get("LD_LIBRARY_PATH", "")
    return tuple(text.split(":")) if text else ()


def compilers_library(context: DoctorContext, name: str) -> Path | None:
    """Return the copy of a library that the C++ compiler links."""
    if context.cxx is None:
        return None
    output = context.run_program((context.cxx.path, f"-print-file-name={name}")).text.strip()
    path = Path(output.splitlines()[-1] if output else "")
    # A compiler without it prints the bare name.
    return path.resolve() if path.is_absolute() and path.exists() else None


def glibcxx_of(path: Path) -> tuple[int, ...]:
    """Return the newest GLIBCXX version of a libstdc++, as (3, 4, 30); empty if unreadable."""
    try:
        versions = re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)\0", path.read_bytes())
    except OSError:
        return ()
    return max((tuple(int(part) for part in text.split(b".")) for text in versions), default=())


_LIBRARIES: Final = {
    "openblas": "libopenblas.*",
    "mkl": "libmkl_core.*",
    "generic": "libblas.*",
    "atlas": "libatlas.*",
    "blis": "libblis.*",
    "flexiblas": "libflexiblas.*",
    "nvpl": "libnvpl_blas_core.*",
}
_PACKAGES: Final = {
    "openblas": ("libopenblas-dev",),
    "generic": ("libblas-dev", "liblapack-dev"),
    "atlas": ("libatlas-base-dev",),
    "blis": ("libblis-dev",),
    "flexiblas": ("libflexiblas-dev",),
}
_FIXES: Final = {"mkl": """--set 'environment.venv.packages+=["mkl-static", "mkl-include"]'"""}
_NAMED_BY: Final = ("OpenBLAS_HOME", "MKLROOT", "INTEL_MKL_DIR", "CONDA_PREFIX")
_EIGEN: Final = {"eigen", ""}


def examine_blas(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the requested BLAS."""
    if context.tools_come_later:
        yield from _conda_blas(context)
        return
    for recipe, _ in context.pytorch_recipes():
        requested = str(recipe.options.get("BLAS", "") or context.variables.get("BLAS", ""))
        yield from _check_blas(context, recipe, requested)


def _check_blas(context: DoctorContext, recipe: Recipe, requested: str) -> Iterator[DoctorFinding]:
    name = requested.lower()
    if name in _EIGEN:
        if requested == "" and not any(_is_installed(context, recipe, item) for item in _LIBRARIES):
            yield warning(
                "no BLAS was found",
                why="PyTorch silently falls back to Eigen: slow matrix products and no LAPACK",
                fix=f"{install_command(context, 'libopenblas-dev')}, and --set BLAS=OpenBLAS",
            )
        return
    built_first = name in recipe.needs or any(other.name == name for other in context.recipes)
    # pip installs MKL into the environment, which does not exist yet.
    built_first |= (
        not context.environment_made and f"{name}-static" in recipe.environment.venv.packages
    )
    if name not in _LIBRARIES or built_first:
        return
    if not _is_installed(context, recipe, name):
        yield blocker(
            f"BLAS={requested}, but {_LIBRARIES[name]} was not found",
            why=f"the configure step would fail with `Preferred BLAS ({requested}) cannot be found`",
            fix=install_command(context, *_PACKAGES[name])
            if name in _PACKAGES
            else _FIXES.get(name, f"install {requested} and add its folder to CMAKE_PREFIX_PATH"),
        )


def _conda_blas(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that a conda environment which does not exist yet will have a BLAS."""
    if context.environment_kind != "conda" or context.environment is None:
        return
    for recipe, _ in context.pytorch_recipes():
        packages = (*context.environment.conda.packages, *recipe.environment.venv.packages)
        if not any(re.search(r"mkl|blas|blis|lapack", package) for package in packages):
            yield warning(
                "the conda environment has no BLAS",
                why="PyTorch silently falls back to Eigen: slow matrix products and no LAPACK",
                fix="--set environment.conda.packages+=openblas --set BLAS=OpenBLAS",
            )


def _is_installed(context: DoctorContext, recipe: Recipe, name: str) -> bool:
    settings = context.settings(recipe)
    prefixes = [Path(settings[key]) for key in _NAMED_BY if settings.get(key)]
    listed = settings.get("CMAKE_PREFIX_PATH", "").replace(";", ":").split(":")
    prefixes += [Path(item) for item in listed if item]
    prefixes += [context.system("usr"), context.system("usr/local"), context.system("opt/OpenBLAS")]
    searched = [prefix / "lib" for prefix in prefixes] + [prefix / "lib64" for prefix in prefixes]
    loose = settings.get("LIBRARY_PATH", "").split(":")
    searched += [Path(item) for item in loose if item]
    # Debian keeps libraries one folder deeper, by architecture, or two, by provider.
    triplet = f"{context.architecture}-linux-gnu"
    deeper = ("", f"{triplet}/", f"{triplet}/*/")
    # The linker uses only names without a version: libopenblas.so.0 is for the loader.
    return any(
        path.suffix in {".so", ".a"}
        for folder in searched
        for place in deeper
        for path in folder.glob(f"{place}{_LIBRARIES[name]}")
    )


_TRAPS: Final = {
    "libtorch*.so*": "another PyTorch is loaded instead of the one being built",
    "libc10*.so*": "another PyTorch is loaded instead of the one being built",
    "libgomp*.so*": "two OpenMP runtimes in one process waste cores or deadlock",
    "libiomp5*.so*": "two OpenMP runtimes in one process waste cores or deadlock",
    "libomp*.so*": "two OpenMP runtimes in one process waste cores or deadlock",
    "libopenblas*.so*": "another BLAS is used than the one that was linked",
    "libblas*.so*": "another BLAS is used than the one that was linked",
    "libmkl_rt*.so*": "another BLAS is used than the one that was linked",
}
_SYSTEM: Final = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


def examine_library_path(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check LD_LIBRARY_PATH and LD_PRELOAD."""
    folders = library_folders(context)
    if "" in folders:
        yield warning(
            "LD_LIBRARY_PATH has an empty entry",
            why="an empty entry means the working directory, so libraries in a build folder are loaded",
            fix='export LD_LIBRARY_PATH="FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" where'
            " it is set",
        )
    for name in dict.fromkeys(folder for folder in folders if folder):
        yield from _folder(context, Path(name))
    preload = context.variables.get("LD_PRELOAD", "")
    if preload:
        yield note(
            f"LD_PRELOAD is set: {preload}",
            why="it is loaded into every compiler and program of the build",
            fix="unset LD_PRELOAD",
        )


def _folder(context: DoctorContext, folder: Path) -> Iterator[DoctorFinding]:
    if folder.name == "stubs":
        yield warning(
            f"{folder} is in LD_LIBRARY_PATH",
            why="stubs are for the linker; a program that loads them finds no device",
            fix="add it to LIBRARY_PATH instead",
        )
    if not folder.is_dir() or _expected(context, folder):
        return
    reasons: dict[str, list[str]] = {}
    for pattern, reason in _TRAPS.items():
        for path in sorted(folder.glob(pattern)):
            if not _compilers_own(context, path):
                reasons.setdefault(reason, []).append(path.name)
    for reason, names in reasons.items():
        yield warning(
            f"LD_LIBRARY_PATH contains {names[0]} in {folder}",
            why=f"it is found before any other copy: {reason}",
            fix=f"remove {folder} from LD_LIBRARY_PATH",
            detail=tuple(names[1:]),
        )


def _expected(context: DoctorContext, folder: Path) -> bool:
    """Return whether a folder belongs to the build, the recipe or the system."""
    if str(folder) in _SYSTEM or any(str(folder).startswith(f"{name}/") for name in _SYSTEM):
        return True
    expected = [name for recipe in context.recipes for name in recipe.environment.libraries]
    if context.plan is not None:
        expected.append(context.plan.folder)
    return any(folder.is_relative_to(name) for name in expected)


def _compilers_own(context: DoctorContext, path: Path) -> bool:
    plain = path.name.split(".so")[0] + ".so"
    own = compilers_library(context, plain)
    return own is not None and own == path.resolve()


_NAME = "libstdc++.so.6"


def examine_libstdcxx(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the libstdc++ that will be loaded."""
    if context.tools_come_later:
        return
    linked = compilers_library(context, _NAME)
    if linked is None:
        return
    offered = glibcxx_of(linked)
    for path, reason in _loaded_first(context):
        loaded = glibcxx_of(path)
        if path.resolve() == linked or not loaded:
            return
        if loaded < offered:
            conda = "conda" in reason
            yield warning(
                f"{path} is older than the libstdc++ of the compiler",
                why=f"it is loaded first ({reason}) and only has GLIBCXX_{_text(loaded)};"
                f" {linked} has {_text(offered)}. An import would fail with"
                f" `GLIBCXX_{_text(offered)}' not found`",
                fix="conda install -c conda-forge 'libstdcxx-ng>=12', or build with conda's"
                " compiler: conda install -c conda-forge gxx"
                if conda
                else f"remove {path.parent} from LD_LIBRARY_PATH",
            )
        # Only the first copy is loaded.
        return


def _loaded_first(context: DoctorContext) -> Iterator[tuple[Path, str]]:
    """Yield the copies in the order in which the loader finds them, with the reason."""
    for folder in library_folders(context):
        path = Path(folder or ".") / _NAME
        if path.is_file():
            yield path, "LD_LIBRARY_PATH"
    prefix = context.variables.get("CONDA_PREFIX") or context.environ.get("CONDA_PREFIX", "")
    # A conda interpreter also searches the lib folder next to its bin.
    if prefix and (Path(prefix) / "lib" / _NAME).is_file():
        yield Path(prefix) / "lib" / _NAME, "the conda environment"


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


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
    search_options: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _TAKES_FOLDER:
            # `-I folder` and `-Ifolder` mean the same; use one spelling below.
            folder = next(rest, "")
            search_options += [f"-I{folder}"] if word == "-I" else [word, folder]
        elif word.startswith(("-I", *_KEEPS)):
            search_options.append(word)
    return search_options


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

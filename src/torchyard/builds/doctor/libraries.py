"""Checks: BLAS is visible to CMake, and the loader picks the right shared libraries.

LD_LIBRARY_PATH and LD_PRELOAD must not put a wrong library before the right one, and the libstdc++
that will be loaded must not be older than the one that the compiler links against.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.builds.doctor.context import DoctorContext
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
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
    "openblas": "apt-get install libopenblas-dev",
    "mkl": "pip install mkl-static mkl-include",
    "generic": "apt-get install libblas-dev liblapack-dev",
    "atlas": "apt-get install libatlas-base-dev",
    "blis": "apt-get install libblis-dev",
    "flexiblas": "apt-get install libflexiblas-dev",
}
_NAMED_BY: Final = ("OpenBLAS_HOME", "MKLROOT", "INTEL_MKL_DIR", "CONDA_PREFIX")
_EIGEN: Final = {"eigen", ""}


def examine_blas(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the requested BLAS."""
    if context.tools_come_later:
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
                fix="apt-get install libopenblas-dev, and --set BLAS=OpenBLAS",
            )
        return
    built_first = name in recipe.needs or any(other.name == name for other in context.recipes)
    if name not in _LIBRARIES or built_first:
        return
    if not _is_installed(context, recipe, name):
        yield blocker(
            f"BLAS={requested}, but {_LIBRARIES[name]} was not found",
            why=f"the configure step would fail with `Preferred BLAS ({requested}) cannot be found`",
            fix=_PACKAGES.get(name, f"install {requested} and add its folder to CMAKE_PREFIX_PATH"),
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

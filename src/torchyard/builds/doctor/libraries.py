"""Checks: BLAS is visible to CMake, and the loader picks the right shared libraries.

LD_LIBRARY_PATH and LD_PRELOAD must not put a wrong library before the right one, and the libstdc++
that will be loaded must not be older than the one that the compiler links against.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.builds.doctor.context import Check, Patient
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.recipe import Recipe


def library_folders(patient: Patient) -> tuple[str, ...]:
    """Folders of LD_LIBRARY_PATH as the build has it, empty entries included."""
    text = patient.variables.get("LD_LIBRARY_PATH", "")
    return tuple(text.split(":")) if text else ()


def compilers_library(patient: Patient, name: str) -> Path | None:
    """The copy of a library that the C++ compiler links against."""
    if patient.cxx is None:
        return None
    said = patient.ask((patient.cxx.path, f"-print-file-name={name}")).text.strip()
    path = Path(said.splitlines()[-1] if said else "")
    # A compiler that does not have it answers with the bare name.
    return path.resolve() if path.is_absolute() and path.exists() else None


def glibcxx_of(path: Path) -> tuple[int, ...]:
    """Newest GLIBCXX version a libstdc++ offers, as (3, 4, 30); empty when it can't be read."""
    try:
        found = re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)\0", path.read_bytes())
    except OSError:
        return ()
    return max((tuple(int(part) for part in text.split(b".")) for text in found), default=())


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


def _examine_blas(patient: Patient) -> Iterator[DoctorFinding]:
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is None or facts.project != "pytorch" or patient.tools_come_later:
            continue
        wanted = str(recipe.options.get("BLAS", "") or patient.variables.get("BLAS", ""))
        yield from _judge(patient, recipe, wanted)


def _judge(patient: Patient, recipe: Recipe, wanted: str) -> Iterator[DoctorFinding]:
    name = wanted.lower()
    if name in _EIGEN:
        if wanted == "" and not any(_seen(patient, recipe, item) for item in _LIBRARIES):
            yield DoctorFinding(
                check=BLAS_CHECK.name,
                severity="warns",
                what="no BLAS can be seen",
                why="PyTorch falls back to Eigen without a word: slow products, and no LAPACK",
                mend="apt-get install libopenblas-dev, and --set BLAS=OpenBLAS",
            )
        return
    if name not in _LIBRARIES or _built_first(patient, recipe, name):
        return
    if not _seen(patient, recipe, name):
        yield DoctorFinding(
            check=BLAS_CHECK.name,
            severity="blocks",
            what=f"BLAS={wanted}, and no {_LIBRARIES[name]} can be seen",
            why=f"`Preferred BLAS ({wanted}) cannot be found` would be the end of the configure step",
            mend=_PACKAGES.get(name, f"install {wanted} and put its folder into CMAKE_PREFIX_PATH"),
        )


def _built_first(patient: Patient, recipe: Recipe, name: str) -> bool:
    return name in recipe.needs or any(other.name == name for other in patient.recipes)


def _seen(patient: Patient, recipe: Recipe, name: str) -> bool:
    settings = patient.settings(recipe)
    prefixes = [Path(settings[key]) for key in _NAMED_BY if settings.get(key)]
    listed = settings.get("CMAKE_PREFIX_PATH", "").replace(";", ":").split(":")
    prefixes += [Path(item) for item in listed if item]
    prefixes += [patient.system("usr"), patient.system("usr/local"), patient.system("opt/OpenBLAS")]
    searched = [prefix / "lib" for prefix in prefixes] + [prefix / "lib64" for prefix in prefixes]
    loose = settings.get("LIBRARY_PATH", "").split(":")
    searched += [Path(item) for item in loose if item]
    # Debian keeps libraries one folder deeper, by architecture, and two by provider.
    triplet = f"{patient.architecture}-linux-gnu"
    deeper = ("", f"{triplet}/", f"{triplet}/*/")
    # The linker takes names without a number only: libopenblas.so.0 alone is for programs that run.
    return any(
        path.suffix in {".so", ".a"}
        for folder in searched
        for place in deeper
        for path in folder.glob(f"{place}{_LIBRARIES[name]}")
    )


BLAS_CHECK = Check(name="blas", looks_at="the BLAS that was asked for", run=_examine_blas)


_TRAPS: Final = {
    "libtorch*.so*": "a PyTorch from elsewhere is loaded instead of the one that is built",
    "libc10*.so*": "a PyTorch from elsewhere is loaded instead of the one that is built",
    "libgomp*.so*": "two OpenMP runtimes in one process waste cores or hang",
    "libiomp5*.so*": "two OpenMP runtimes in one process waste cores or hang",
    "libomp*.so*": "two OpenMP runtimes in one process waste cores or hang",
    "libopenblas*.so*": "another BLAS computes than the one that was linked",
    "libblas*.so*": "another BLAS computes than the one that was linked",
    "libmkl_rt*.so*": "another BLAS computes than the one that was linked",
}
_SYSTEM: Final = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


def _examine_library_path(patient: Patient) -> Iterator[DoctorFinding]:
    folders = library_folders(patient)
    if "" in folders:
        yield DoctorFinding(
            check=LIBRARY_PATH_CHECK.name,
            severity="warns",
            what="LD_LIBRARY_PATH has an empty entry",
            why="it means the working folder, so that libraries in a build folder are loaded",
            mend='export LD_LIBRARY_PATH="FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" where'
            " it is set",
        )
    for name in dict.fromkeys(folder for folder in folders if folder):
        yield from _folder(patient, Path(name))
    preload = patient.variables.get("LD_PRELOAD", "")
    if preload:
        yield DoctorFinding(
            check=LIBRARY_PATH_CHECK.name,
            severity="notes",
            what=f"LD_PRELOAD is set: {preload}",
            why="every compiler and every program of the build loads it",
            mend="unset LD_PRELOAD",
        )


def _folder(patient: Patient, folder: Path) -> Iterator[DoctorFinding]:
    if folder.name == "stubs":
        yield DoctorFinding(
            check=LIBRARY_PATH_CHECK.name,
            severity="warns",
            what=f"{folder} is in LD_LIBRARY_PATH",
            why="stubs are for the linker; a program that loads them finds no device",
            mend="use LIBRARY_PATH for it instead",
        )
    if not folder.is_dir() or _expected(patient, folder):
        return
    reasons: dict[str, list[str]] = {}
    for pattern, reason in _TRAPS.items():
        for path in sorted(folder.glob(pattern)):
            if not _compilers_own(patient, path):
                reasons.setdefault(reason, []).append(path.name)
    for reason, names in reasons.items():
        yield DoctorFinding(
            check=LIBRARY_PATH_CHECK.name,
            severity="warns",
            what=f"LD_LIBRARY_PATH leads to {names[0]} in {folder}",
            why=f"it is found before any other copy: {reason}",
            mend=f"take {folder} out of LD_LIBRARY_PATH",
            detail=tuple(names[1:]),
        )


def _expected(patient: Patient, folder: Path) -> bool:
    """Folders that are meant: the build's own, the recipe's, the environment's, the system's."""
    if str(folder) in _SYSTEM or any(str(folder).startswith(f"{name}/") for name in _SYSTEM):
        return True
    meant = [name for recipe in patient.recipes for name in recipe.environment.libraries]
    if patient.plan is not None:
        meant.append(patient.plan.folder)
    return any(folder.is_relative_to(name) for name in meant)


def _compilers_own(patient: Patient, path: Path) -> bool:
    plain = path.name.split(".so")[0] + ".so"
    own = compilers_library(patient, plain)
    return own is not None and own == path.resolve()


LIBRARY_PATH_CHECK = Check(
    name="library-path", looks_at="LD_LIBRARY_PATH and LD_PRELOAD", run=_examine_library_path
)


_NAME = "libstdc++.so.6"


def _examine_libstdcxx(patient: Patient) -> Iterator[DoctorFinding]:
    if patient.tools_come_later:
        return
    linked = compilers_library(patient, _NAME)
    if linked is None:
        return
    offered = glibcxx_of(linked)
    for path, reason in _loaded_first(patient):
        loaded = glibcxx_of(path)
        if path.resolve() == linked or not loaded:
            return
        if loaded < offered:
            conda = "conda" in reason
            yield DoctorFinding(
                check=LIBSTDCXX_CHECK.name,
                severity="warns",
                what=f"{path} is older than the compiler's own libstdc++",
                why=f"it would be loaded first ({reason}) and ends at GLIBCXX_{_text(loaded)};"
                f" {linked} has {_text(offered)}. `GLIBCXX_{_text(offered)}' not found` is what"
                " an import would say",
                mend="conda install -c conda-forge 'libstdcxx-ng>=12', or build with conda's"
                " compiler: conda install -c conda-forge gxx"
                if conda
                else f"take {path.parent} out of LD_LIBRARY_PATH",
            )
        # Only the first copy is loaded.
        return


def _loaded_first(patient: Patient) -> Iterator[tuple[Path, str]]:
    """Copies in the order the loader of the environment's Python finds them."""
    for folder in library_folders(patient):
        path = Path(folder or ".") / _NAME
        if path.is_file():
            yield path, "LD_LIBRARY_PATH"
    prefix = patient.variables.get("CONDA_PREFIX") or patient.environ.get("CONDA_PREFIX", "")
    # A conda interpreter has a search path of its own: the lib folder beside its bin.
    if prefix and (Path(prefix) / "lib" / _NAME).is_file():
        yield Path(prefix) / "lib" / _NAME, "the conda environment"


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


LIBSTDCXX_CHECK = Check(
    name="libstdc++", looks_at="the libstdc++ that will be loaded", run=_examine_libstdcxx
)

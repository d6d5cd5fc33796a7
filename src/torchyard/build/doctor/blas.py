"""Check: the BLAS that the recipe asks for can be seen by CMake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import Recipe

__all__ = ["CHECK"]

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


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
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
                check=CHECK.name,
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
            check=CHECK.name,
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


CHECK = Check(name="blas", looks_at="the BLAS that was asked for", run=_examine)

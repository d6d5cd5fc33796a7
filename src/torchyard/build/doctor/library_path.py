"""Check: LD_LIBRARY_PATH and LD_PRELOAD put no wrong library before the right one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.doctor.library_lookup import compilers_library, library_folders
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]

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


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    folders = library_folders(patient)
    if "" in folders:
        yield DoctorFinding(
            check=CHECK.name,
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
            check=CHECK.name,
            severity="notes",
            what=f"LD_PRELOAD is set: {preload}",
            why="every compiler and every program of the build loads it",
            mend="unset LD_PRELOAD",
        )


def _folder(patient: Patient, folder: Path) -> Iterator[DoctorFinding]:
    if folder.name == "stubs":
        yield DoctorFinding(
            check=CHECK.name,
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
            check=CHECK.name,
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


CHECK = Check(name="library-path", looks_at="LD_LIBRARY_PATH and LD_PRELOAD", run=_examine)

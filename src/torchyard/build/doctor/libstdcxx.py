"""Check: the libstdc++ that will be loaded is not older than the one the compiler links against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchyard.build.doctor.library_lookup import compilers_library, glibcxx_of, library_folders
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]

_NAME = "libstdc++.so.6"


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
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
                check=CHECK.name,
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


CHECK = Check(name="libstdc++", looks_at="the libstdc++ that will be loaded", run=_examine)

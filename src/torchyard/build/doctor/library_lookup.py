"""Which shared library the loader would take, and what a libstdc++ offers. Judges nothing."""

from __future__ import annotations

import re
from pathlib import Path

from torchyard.build.doctor.patient import Patient

__all__ = ["compilers_library", "glibcxx_of", "library_folders"]


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

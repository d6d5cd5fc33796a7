"""Check: the compilers are there and really compile, link and run a small program with OpenMP."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.build.doctor.patient import Check, Patient, Said
from torchyard.build.tools import Tool
from torchyard.build.verify.cmake_cache import as_truth
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]

_PROGRAM: Final = """\
#include <cstdio>
#include <string>
#include <vector>
int main() {
    std::vector<std::string> words{"torch", "yard"};
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 100; ++i) sum += i;
    std::printf("%s%d\\n", (words[0] + words[1]).c_str(), sum);
    return sum == 4950 ? 0 : 1;
}
"""
_SHOWN_LINES: Final = 6


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if patient.tools_come_later:
        return
    for tool, variable, package in ((patient.cc, "CC", "gcc"), (patient.cxx, "CXX", "g++")):
        named = patient.variables.get(variable, "")
        if tool is None:
            yield DoctorFinding(
                check=CHECK.name,
                severity="blocks",
                what=f"{variable} names {named}, which is not there" if named else f"no {package}",
                why="nothing can be compiled",
                mend=f"unset {variable}" if named else f"apt-get install {package}",
            )
    if patient.cxx is not None:
        yield from _tried(patient, patient.cxx)


def _tried(patient: Patient, cxx: Tool) -> Iterator[DoctorFinding]:
    standard = max((f.cxx_standard for r in patient.recipes if (f := patient.facts(r))), default=17)
    with tempfile.TemporaryDirectory(prefix="torchyard-doctor-") as name:
        folder = Path(name)
        (folder / "probe.cpp").write_text(_PROGRAM, encoding="utf-8")
        failed = _build(patient, cxx, folder, f"-std=c++{standard}", "-fopenmp")
        if failed is None:
            return
        plain = _build(patient, cxx, folder, f"-std=c++{standard}")
        if plain is None:
            wanted = any(
                as_truth(str(recipe.options.get("USE_OPENMP", ""))) for recipe in patient.recipes
            )
            yield DoctorFinding(
                check=CHECK.name,
                severity="blocks" if wanted else "warns",
                what=f"{cxx.path} can't build a program with OpenMP",
                why="without OpenMP, PyTorch computes on one core",
                mend=_openmp_mend(cxx),
                detail=_last_lines(failed),
            )
            return
        oldest = _build(patient, cxx, folder)
        if oldest is None:
            what = f"{cxx.path} does not know C++{standard}"
            mend = "install a newer compiler and set CC and CXX to it"
        else:
            what = f"{cxx.path} can't build a small program"
            mend = "reinstall it: apt-get install --reinstall g++ libc6-dev"
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what=what,
            why="it was tried with CXXFLAGS and LDFLAGS as the build has them",
            mend=mend,
            detail=_last_lines(plain),
        )


def _build(patient: Patient, cxx: Tool, folder: Path, *flags: str) -> Said | None:
    """What went wrong; None when the program was built and ran."""
    extra = [*patient.words("CXXFLAGS"), *patient.words("LDFLAGS")]
    built = patient.ask((cxx.path, *flags, *extra, "probe.cpp", "-o", "probe"), folder=folder)
    if built.exit_code != 0:
        return built
    ran = patient.ask((str(folder / "probe"),), folder=folder)
    return None if ran.exit_code == 0 and "torchyard4950" in ran.text else ran


def _openmp_mend(cxx: Tool) -> str:
    if cxx.family == "clang":
        major = cxx.version.split(".")[0]
        return f"apt-get install libomp-{major}-dev"
    return "apt-get install libgomp1, or use gcc: CC=gcc CXX=g++"


def _last_lines(said: Said) -> tuple[str, ...]:
    lines = [line for line in said.text.splitlines() if line.strip()]
    return tuple(lines[-_SHOWN_LINES:])


CHECK = Check(name="compilers", looks_at="compilers, by compiling", run=_examine)

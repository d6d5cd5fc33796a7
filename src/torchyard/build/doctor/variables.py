"""Check: options and variables that look right and never reach the build of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from torchyard.build.coupling import ReleaseFacts, allows, known_releases, release_facts
from torchyard.build.doctor.forwarding import (
    looks_like_option,
    nearest_option,
    reaches_cmake,
    route_of,
)
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is None or facts.project != "pytorch":
            continue
        options = dict.fromkeys(recipe.options, "the option")
        variables = dict.fromkeys(recipe.environment.variables, "the variable")
        if patient.plan is None:
            variables |= dict.fromkeys(patient.environ, "the variable")
        asked = {name: kind for name, kind in variables.items() if looks_like_option(name)}
        for name, kind in (asked | options).items():
            yield from _judge(name, kind, facts)
        yield from _install_prefix(patient.settings(recipe), facts)
    if not patient.recipes:
        newest = release_facts("pytorch", known_releases("pytorch")[-1])
        for name in filter(looks_like_option, patient.environ):
            yield from _judge(name, "the variable", newest)


def _judge(name: str, kind: str, facts: ReleaseFacts) -> Iterator[DoctorFinding]:
    near = nearest_option(name)
    if route_of(name, facts.version) == "nowhere":
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"{kind} {name} reaches nothing in pytorch {facts.version}",
            why="names that start with BUILD_, USE_ or CMAKE_, and a fixed list of others, become"
            " CMake variables; the rest is ignored without a word",
            mend=_instead(name, near),
        )
    elif near and reaches_cmake(name, facts.version):
        yield DoctorFinding(
            check=CHECK.name,
            severity="warns",
            what=f"{kind} {name} is handed to CMake, where nothing is known by that name",
            why="a misspelt option is ignored without a word",
            mend=f"did you mean {near}?",
        )


def _instead(name: str, near: str) -> str:
    if name in {"CMAKE_FRESH", "CMAKE_ONLY"}:
        return "delete the build folder instead; the switch went with setup.py"
    if name == "_GLIBCXX_USE_CXX11_ABI":
        return "leave it out: from 2.7 on only the new ABI is built"
    if name.startswith("NO_"):
        return f"USE_{name.removeprefix('NO_')}=0"
    if near:
        return f"did you mean {near}?"
    return f"give it to CMake itself: CMAKE_ARGS=-D{name}=VALUE, or leave it out"


def _install_prefix(settings: dict[str, str], facts: ReleaseFacts) -> Iterator[DoctorFinding]:
    if settings.get("CMAKE_INSTALL_PREFIX") and allows("<2.14", facts.version):
        yield DoctorFinding(
            check=CHECK.name,
            severity="blocks",
            what="CMAKE_INSTALL_PREFIX is set",
            why=f"setup.py of pytorch {facts.version} ends at once when it is: it installs into its"
            " own tree",
            mend="unset CMAKE_INSTALL_PREFIX",
        )
    if settings.get("CFLAGS") and not settings.get("CXXFLAGS"):
        yield DoctorFinding(
            check=CHECK.name,
            severity="notes",
            what="CFLAGS is set and CXXFLAGS is not",
            why="PyTorch then uses CFLAGS for C++, too",
            mend="set CXXFLAGS as well",
        )


CHECK = Check(name="variables", looks_at="options and variables that go nowhere", run=_examine)

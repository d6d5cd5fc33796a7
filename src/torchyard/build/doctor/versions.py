"""Check: versions of compilers, tools and toolkits against what the release needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchyard.build.coupling import check_versions, known_releases, release_facts
from torchyard.build.doctor.found_versions import found_versions
from torchyard.build.doctor.patient import Check, Patient
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import EnvironmentTable, Recipe

__all__ = ["CHECK"]


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.recipes:
        yield from _general(patient)
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is None:
            continue
        found = found_versions(patient, recipe)
        yield from check_versions(
            facts,
            found,
            architecture=patient.architecture,
            variables=patient.settings(recipe),
        )
        for note in facts.notes:
            yield DoctorFinding(check=CHECK.name, severity="notes", what=note)


def _general(patient: Patient) -> Iterator[DoctorFinding]:
    """Without a recipe nothing is going to be built, so nothing can block."""
    newest = known_releases("pytorch")[-1]
    recipe = Recipe(name="pytorch", environment=EnvironmentTable(use="current"))
    found = found_versions(patient, recipe)
    facts = release_facts("pytorch", newest)
    for finding in check_versions(facts, found, architecture=patient.architecture):
        yield replace(finding, severity="notes")


CHECK = Check(
    name="versions",
    looks_at="versions of tools against the release's table",
    run=_examine,
)

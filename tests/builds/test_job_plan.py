"""The number of jobs in a plan: requested or chosen, with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of, shell, step
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.meter.compile_costs import history_name, parse_jobs, with_jobs
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.facts.isolation import MachineLimits

LIMITS = MachineLimits(
    cores=8,
    total_mib=16384,
    available_mib=16384,
    cores_why="8 cores",
    memory_why="on this machine",
)


def plan_with(folder: Path, *recipes: Recipe) -> Plan:
    plan = plan_of(folder, step("one", shell("true")))
    parts = tuple(replace(plan.components[0], name=one.name, recipe=one) for one in recipes)
    return replace(plan, components=parts)


@pytest.mark.parametrize(("text", "jobs"), [("auto", None), ("1", 1), ("64", 64)])
def test_valid_job_counts(text: str, jobs: int | None) -> None:
    assert parse_jobs(text) == jobs


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.5", "Auto", " 2"])
def test_invalid_job_counts(text: str) -> None:
    with pytest.raises(UsageError, match="--jobs: ") as raised:
        parse_jobs(text)
    assert "--jobs auto" in raised.value.hint


def test_the_heaviest_component_decides(tmp_path: Path) -> None:
    plan = plan_with(
        tmp_path,
        Recipe(name="light", job_memory_mib=500),
        Recipe(name="heavy", job_memory_mib=7000),
    )
    planned, choice = with_jobs(plan, None, home=BuildsDirectory(folder=tmp_path), limits=LIMITS)
    assert planned.jobs == choice.jobs == 2
    assert "limited by memory" in planned.jobs_why
    asked, _ = with_jobs(plan, 5, home=BuildsDirectory(folder=tmp_path), limits=LIMITS)
    assert asked.jobs == 5
    assert "as requested" in asked.jobs_why


def test_job_counts_are_passed_by_variables_outside_of_fingerprints(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, Recipe(name="x"))
    planned, _ = with_jobs(plan, 3, home=BuildsDirectory(folder=tmp_path), limits=LIMITS)
    assert planned.runner_variables["MAX_JOBS"] == "3"
    assert planned.runner_variables["CMAKE_BUILD_PARALLEL_LEVEL"] == "3"
    assert planned.steps == plan.steps


def test_a_long_build_has_an_estimate(tmp_path: Path) -> None:
    home = BuildsDirectory(folder=tmp_path)
    short = plan_with(tmp_path, Recipe(name="x", cpu_seconds=30))
    assert with_jobs(short, 2, home=home, limits=LIMITS)[0].notes == short.notes
    long = plan_with(tmp_path, Recipe(name="x", cpu_seconds=14400), Recipe(name="y"))
    (note,) = with_jobs(long, 2, home=home, limits=LIMITS)[0].notes
    assert "14400 s of CPU time (estimated by the recipes)" in note
    assert "120 minutes with 2 jobs" in note


def test_costs_are_remembered_by_recipe_and_variant(tmp_path: Path) -> None:
    plan = plan_with(
        tmp_path,
        Recipe(name="pytorch", variant="trimmed"),
        Recipe(name="x"),
        Recipe(name="generic"),
    )

    def name(part: Component) -> str:
        return history_name(plan, part)

    assert [name(part) for part in plan.components] == ["pytorch trimmed", "x", "generic plan"]

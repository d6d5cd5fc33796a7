"""Puts the number of jobs into a plan, and says why it is that number."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Final

from torchyard.build.layout import YardHome
from torchyard.build.meter.history import History
from torchyard.build.meter.jobs import JobChoice, choose_jobs
from torchyard.core.build_plan import Component, Plan
from torchyard.errors import UsageError
from torchyard.machine.limits import MachineLimits

__all__ = ["history_name", "parse_jobs", "with_jobs"]

_GENERIC: Final = "generic"
_JOBS: Final = re.compile(r"[0-9]{1,9}")
_WORTH_SAYING_S: Final = 60.0


def parse_jobs(text: str) -> int | None:
    """`auto`, or a number of at least 1."""
    if text == "auto":
        return None
    jobs = int(text) if _JOBS.fullmatch(text) else 0
    most = max(1024, 8 * (os.cpu_count() or 1))
    if not 1 <= jobs <= most:
        raise UsageError(
            f"--jobs: {text[:80]!r} is neither auto nor a number of at least 1 and at most {most}",
            hint="write --jobs auto or --jobs 4",
        )
    return jobs


def history_name(plan: Plan, component: Component) -> str:
    """Under which name the cost of a component's files is remembered.

    Variants are told apart, because debug information and other options cost memory. What the
    generic recipe builds has only the build's own name.
    """
    recipe = component.recipe
    if recipe.name == _GENERIC:
        return f"{_GENERIC} {plan.name}"
    return f"{recipe.name} {recipe.variant}".strip()


def with_jobs(
    plan: Plan, requested: int | None, *, home: YardHome, limits: MachineLimits
) -> tuple[Plan, JobChoice]:
    """The plan with its job count, decided by the component whose compiles need most memory."""
    heaviest = max(plan.components, key=lambda part: part.recipe.job_memory_mib)
    history = History(folder=home.history)
    choice = choose_jobs(
        requested=requested,
        recipe=heaviest.recipe,
        history=history.read(history_name(plan, heaviest)),
        limits=limits,
    )
    estimate = _estimate(plan, history, choice.jobs)
    # MAX_JOBS is what setup.py of PyTorch and torch.utils.cpp_extension read; CMake and
    # scikit-build-core read the other one.
    variables = {
        "MAX_JOBS": str(choice.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(choice.jobs),
        # torch.utils.cpp_extension would put a compiler cache of its own choice before the meter,
        # where it takes each build's meter for another compiler and never hits.
        "TORCH_NO_COMPILER_WRAPPER": "1",
    }
    planned = replace(
        plan,
        jobs=choice.jobs,
        jobs_why=choice.why,
        runner_variables=variables,
        notes=(*plan.notes, *estimate),
    )
    return planned, choice


def _estimate(plan: Plan, history: History, jobs: int) -> tuple[str, ...]:
    """How long compiling will take, by what was measured here or by what the recipes say."""
    total_s, measured = 0.0, True
    for part in plan.components:
        known_s = history.read(history_name(plan, part)).cpu_s
        measured = measured and known_s > 0
        total_s += known_s or part.recipe.cpu_seconds
    if total_s < _WORTH_SAYING_S:
        return ()
    source = "as measured here" if measured else "as the recipes say"
    minutes = total_s / jobs / 60
    return (
        (
            f"compiling everything takes about {total_s:.0f} s of CPU time ({source}): "
            f"{minutes:.0f} minutes with {jobs} jobs on idle cores"
        ),
    )

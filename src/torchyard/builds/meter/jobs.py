"""Choose the number of parallel compile jobs from cores and memory per file.

`with_jobs` stores the number in a plan, with the reason.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Final

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.meter.compile_costs import ComponentHistory, History
from torchyard.builds.meter.compiler_launcher import UNIT_MIB
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.limits import MachineLimits

_GIB_MIB: Final = 1024
_MIN_MARGIN_MIB: Final = 1024
_MARGIN_SHARE: Final = 0.10
_ENOUGH_FILES: Final = 10
"""With fewer measured files, the estimate of the recipe is used."""
_MEASURED_MARGIN: Final = 1.1
_MIN_JOB_MIB: Final = 64


@dataclass(frozen=True, kw_only=True)
class JobChoice:
    """Number of parallel compiles, their memory, and the reason."""

    jobs: int
    memory_mib: int
    """Total memory of all compiles."""
    default_mib: int
    """Reserved for a file without a measurement."""
    why: str


def choose_jobs(
    *,
    requested: int | None,
    recipe: Recipe,
    history: ComponentHistory,
    limits: MachineLimits,
) -> JobChoice:
    """Return the requested number of jobs, else one per core, or fewer if memory is short."""
    margin = max(_MIN_MARGIN_MIB, round(limits.total_mib * _MARGIN_SHARE))
    # With less memory than the margin, small files can still be compiled one by one.
    memory = max(limits.available_mib - margin, limits.available_mib // 2, UNIT_MIB)
    ordinary, default, source = _job_memory(recipe, history)
    fitting = max(memory // ordinary, 1)
    jobs = requested if requested is not None else min(limits.cores, fitting)
    budget = (
        f"{_gib(memory)} for compiles ({_gib(limits.available_mib)} available "
        f"{limits.memory_why}, minus a margin of {_gib(limits.available_mib - memory)})"
    )
    each = f"{_gib(ordinary)} each, {source}"
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    if requested is not None:
        why = f"{count}, as requested: there are {limits.cores_why}, and {budget}, at {each}."
        if jobs > fitting:
            why += f" Memory suffices for {fitting} in parallel; the others wait for it."
    elif jobs < limits.cores:
        why = f"{count} on {limits.cores_why}, limited by memory: {budget}, at {each}."
    else:
        why = f"{count} for {limits.cores_why}: {budget}, at {each}, suffices for {fitting}."
    largest = max([*history.needs_mib().values(), *recipe.heavy.values(), 0])
    if largest * jobs > memory:
        why += f" Files that need more (up to {_gib(largest)}) wait until it is free."
    return JobChoice(jobs=jobs, memory_mib=memory, default_mib=default, why=why)


def _job_memory(recipe: Recipe, history: ComponentHistory) -> tuple[int, int, str]:
    """Return the memory of a typical and of an unknown compile, and the source of the numbers.

    Typical is the median: larger files reserve their measured amount. An unknown file gets the 90 %
    quantile.
    """
    measured = [cost for cost in history.files.values() if cost.peak_mib > 0]
    median, most = history.peak_quantile_mib(0.5), history.peak_quantile_mib(0.9)
    if median is None or most is None or len(measured) < _ENOUGH_FILES:
        estimate = max(recipe.job_memory_mib, _MIN_JOB_MIB)
        return estimate, estimate, "as estimated by the recipe"
    ordinary = max(math.ceil(median * _MEASURED_MARGIN), _MIN_JOB_MIB)
    default = max(math.ceil(most * _MEASURED_MARGIN), _MIN_JOB_MIB)
    return ordinary, default, f"as measured for {len(measured)} files"


def _gib(mib: int) -> str:
    return f"{mib / _GIB_MIB:.1f} GiB" if mib >= _GIB_MIB else f"{mib} MiB"


_GENERIC: Final = "generic"
_JOBS: Final = re.compile(r"[0-9]{1,9}")
_MIN_REPORTED_S: Final = 60.0


def parse_jobs(text: str) -> int | None:
    """Parse `auto` (None) or a number of at least 1."""
    if text == "auto":
        return None
    jobs = int(text) if _JOBS.fullmatch(text) else 0
    most = max(1024, 8 * (os.cpu_count() or 1))
    if not 1 <= jobs <= most:
        raise UsageError(
            f"--jobs: {text[:80]!r} is neither auto nor a number from 1 to {most}",
            hint="use --jobs auto or --jobs 4",
        )
    return jobs


def history_name(plan: Plan, component: Component) -> str:
    """Return the name of the compile history of a component.

    Variants have separate histories, because debug information and other options change the memory.
    Builds of the generic recipe are identified by the name of the build.
    """
    recipe = component.recipe
    if recipe.name == _GENERIC:
        return f"{_GENERIC} {plan.name}"
    return f"{recipe.name} {recipe.variant}".strip()


def with_jobs(
    plan: Plan, requested: int | None, *, home: BuildsDirectory, limits: MachineLimits
) -> tuple[Plan, JobChoice]:
    """Return the plan with its job count, chosen for the component that needs the most memory."""
    largest = max(plan.components, key=lambda part: part.recipe.job_memory_mib)
    history = History(folder=home.history)
    choice = choose_jobs(
        requested=requested,
        recipe=largest.recipe,
        history=history.read(history_name(plan, largest)),
        limits=limits,
    )
    estimate = _estimate(plan, history, choice.jobs)
    # setup.py of PyTorch and torch.utils.cpp_extension read MAX_JOBS; CMake and scikit-build-core
    # read the other one.
    variables = {
        "MAX_JOBS": str(choice.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(choice.jobs),
        # torch.utils.cpp_extension would run a compiler cache before the meter, which treats the
        # meter of each build as another compiler and never hits.
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
    """Return a note with the expected compile time, from measurements or recipes."""
    total_s, measured = 0.0, True
    for part in plan.components:
        recorded_s = history.read(history_name(plan, part)).cpu_s
        measured = measured and recorded_s > 0
        total_s += recorded_s or part.recipe.cpu_seconds
    if total_s < _MIN_REPORTED_S:
        return ()
    source = "measured here" if measured else "estimated by the recipes"
    minutes = total_s / jobs / 60
    return (
        (
            f"compiling everything takes about {total_s:.0f} s of CPU time ({source}): "
            f"{minutes:.0f} minutes with {jobs} jobs on idle cores"
        ),
    )

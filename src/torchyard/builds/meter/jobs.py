"""The number of compile jobs that may run at a time, by processors and by memory per file.

`with_jobs` puts the number into a plan together with its reason.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Final

from torchyard.builds.build_folders import YardHome
from torchyard.builds.meter.compile_costs import ComponentHistory, History
from torchyard.builds.meter.compiler_launcher import UNIT_MIB, memory_units
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.limits import MachineLimits

_GIB_MIB: Final = 1024
_LEAST_MARGIN_MIB: Final = 1024
_MARGIN_SHARE: Final = 0.10
_ENOUGH_FILES: Final = 10
"""Below this many measured files, what the recipe says counts."""
_MEASURED_MARGIN: Final = 1.1
_LEAST_JOB_MIB: Final = 64


@dataclass(frozen=True, kw_only=True)
class JobChoice:
    """How many compiles run at a time, with what memory, and why."""

    jobs: int
    memory_mib: int
    """For all compiles together."""
    units: int
    """The same in the meter's units."""
    default_mib: int
    """Reserved for a file that nothing is known of."""
    why: str


def choose_jobs(
    *,
    requested: int | None,
    recipe: Recipe,
    history: ComponentHistory,
    limits: MachineLimits,
) -> JobChoice:
    """The number of jobs: one per core, unless memory is short or the user has said."""
    if requested is not None and requested < 1:
        raise UsageError(
            f"--jobs {requested}: at least one job is needed", hint="use --jobs auto, or a number"
        )
    margin = max(_LEAST_MARGIN_MIB, round(limits.total_mib * _MARGIN_SHARE))
    # On a machine with less than the margin a build of small files can still work, one by one.
    memory = max(limits.available_mib - margin, limits.available_mib // 2, UNIT_MIB)
    ordinary, default, source = _job_memory(recipe, history)
    fitting = max(memory // ordinary, 1)
    jobs = requested if requested is not None else min(limits.cores, fitting)
    room = (
        f"{_gib(memory)} for compiles ({_gib(limits.available_mib)} available "
        f"{limits.memory_why}, less a margin of {_gib(limits.available_mib - memory)})"
    )
    each = f"{_gib(ordinary)} each, {source}"
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    if requested is not None:
        why = f"{count}, as requested: there are {limits.cores_why}, and {room}, at {each}."
        if jobs > fitting:
            why += f" Memory allows {fitting} at a time; the others wait for it."
    elif jobs < limits.cores:
        why = f"{count} on {limits.cores_why}, because memory allows no more: {room}, at {each}."
    else:
        why = f"{count} for {limits.cores_why}: {room}, at {each}, would allow {fitting}."
    heaviest = max([*history.needs_mib().values(), *recipe.heavy.values(), 0])
    if heaviest * jobs > memory:
        why += f" Files that need more (up to {_gib(heaviest)}) wait until it is free."
    return JobChoice(
        jobs=jobs, memory_mib=memory, units=memory_units(memory), default_mib=default, why=why
    )


def memory_table(recipe: Recipe, history: ComponentHistory) -> dict[str, int]:
    """The meter's table: what was measured, then the recipe's patterns for heavy files."""
    return {**history.needs_mib(), **recipe.heavy}


def _job_memory(recipe: Recipe, history: ComponentHistory) -> tuple[int, int, str]:
    """Memory of an ordinary compile, of an unknown one, and where the numbers come from.

    The ordinary one is the median: bigger files reserve their own measured amount. An unknown file
    gets what nine in ten stay under.
    """
    measured = [cost for cost in history.files.values() if cost.peak_mib > 0]
    median, most = history.peak_quantile_mib(0.5), history.peak_quantile_mib(0.9)
    if median is None or most is None or len(measured) < _ENOUGH_FILES:
        said = max(recipe.job_memory_mib, _LEAST_JOB_MIB)
        return said, said, "as the recipe says"
    ordinary = max(math.ceil(median * _MEASURED_MARGIN), _LEAST_JOB_MIB)
    default = max(math.ceil(most * _MEASURED_MARGIN), _LEAST_JOB_MIB)
    return ordinary, default, f"as {len(measured)} files measured here"


def _gib(mib: int) -> str:
    return f"{mib / _GIB_MIB:.1f} GiB" if mib >= _GIB_MIB else f"{mib} MiB"


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

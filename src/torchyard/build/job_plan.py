"""Puts the number of jobs into a plan, and says why it is that number."""

from __future__ import annotations

from dataclasses import replace

from torchyard.build.layout import YardHome
from torchyard.build.meter.history import History
from torchyard.build.meter.jobs import JobChoice, choose_jobs
from torchyard.build.meter.limits import MachineLimits
from torchyard.core.build_plan import Plan
from torchyard.errors import UsageError

__all__ = ["parse_jobs", "with_jobs"]


def parse_jobs(text: str) -> int | None:
    """`auto`, or a number of at least 1."""
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"--jobs: {text!r} is neither a number nor auto", hint="write --jobs auto or --jobs 4"
        )
    return int(text)


def with_jobs(
    plan: Plan, requested: int | None, *, home: YardHome, limits: MachineLimits
) -> tuple[Plan, JobChoice]:
    """The plan with its job count, decided by the component whose compiles need most memory."""
    heaviest = max(plan.components, key=lambda part: part.recipe.job_memory_mib)
    history = History(folder=home.history)
    choice = choose_jobs(
        requested=requested,
        recipe=heaviest.recipe,
        history=history.read(heaviest.name),
        limits=limits,
    )
    # MAX_JOBS is what setup.py of PyTorch and torch.utils.cpp_extension read; CMake and
    # scikit-build-core read the other one.
    variables = {
        "MAX_JOBS": str(choice.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(choice.jobs),
        # torch.utils.cpp_extension would put a compiler cache of its own choice before the meter,
        # where it takes each build's meter for another compiler and never hits.
        "TORCH_NO_COMPILER_WRAPPER": "1",
    }
    return (
        replace(plan, jobs=choice.jobs, jobs_why=choice.why, runner_variables=variables),
        choice,
    )

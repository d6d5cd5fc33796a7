"""How many compiles may run at a time, and how much memory each file is expected to need.

The meter admits compiles by these numbers: the count of jobs is for ordinary files, and a heavy
one waits until its memory is free. Reads nothing itself; limits and history are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from torchyard.build.meter.history import ComponentHistory
from torchyard.build.meter.launcher import UNIT_MIB, memory_units
from torchyard.core.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.limits import MachineLimits

__all__ = ["JobChoice", "choose_jobs", "memory_table"]

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

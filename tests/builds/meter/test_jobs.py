"""The choice of the number of jobs, and its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.meter.compile_costs import (
    ComponentHistory,
    FileCost,
    JobChoice,
    choose_jobs,
    parse_jobs,
)
from torchyard.builds.meter.compiler_launcher import UNIT_MIB
from torchyard.builds.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.limits import MachineLimits

RECIPE = Recipe(name="pytorch", job_memory_mib=1024)
NOTHING = ComponentHistory()


def limits(cores: int, available_mib: int, total_mib: int | None = None) -> MachineLimits:
    return MachineLimits(
        cores=cores,
        total_mib=total_mib or available_mib,
        available_mib=available_mib,
        cores_why=f"{cores} cores",
        memory_why="on this machine",
    )


def measured(*peaks: float) -> ComponentHistory:
    return ComponentHistory(
        files={f"{n}.o": FileCost(peak_mib=peak, cpu_s=1) for n, peak in enumerate(peaks)}
    )


def choose(
    machine: MachineLimits,
    *,
    requested: int | None = None,
    recipe: Recipe = RECIPE,
    history: ComponentHistory = NOTHING,
) -> JobChoice:
    return choose_jobs(requested=requested, recipe=recipe, history=history, limits=machine)


def test_one_job_per_core_where_memory_allows() -> None:
    choice = choose(limits(8, 32 * 1024))
    assert choice.jobs == 8
    assert choice.memory_mib == 32 * 1024 - 3277
    assert choice.default_mib == 1024
    assert choice.why == (
        "8 jobs for 8 cores: 28.8 GiB for compiles (32.0 GiB available on this machine, minus a "
        "margin of 3.2 GiB), at 1.0 GiB each, as estimated by the recipe, suffices for 28."
    )


def test_fewer_where_memory_is_short() -> None:
    choice = choose(limits(16, 6 * 1024))
    assert choice.jobs == 5
    assert choice.why.startswith("5 jobs on 16 cores, limited by memory: 5.0 GiB for")


def test_a_tiny_machine_still_builds() -> None:
    choice = choose(limits(4, 600))
    assert (choice.jobs, choice.memory_mib) == (1, 300)
    assert choose(limits(1, 0)).memory_mib == UNIT_MIB


def test_a_request_is_kept_and_its_consequence_reported() -> None:
    choice = choose(limits(2, 6 * 1024), requested=12)
    assert choice.jobs == 12
    assert choice.memory_mib == 5 * 1024
    assert "as requested" in choice.why
    assert "Memory suffices for 5 in parallel; the others wait for it." in choice.why
    assert choose(limits(2, 64 * 1024), requested=1).why.startswith("1 job, as requested")


@pytest.mark.parametrize("jobs", [0, -3])
def test_no_jobs_is_rejected(jobs: int) -> None:
    with pytest.raises(UsageError, match=str(jobs)):
        parse_jobs(str(jobs))


def test_measured_files_replace_the_recipes_number() -> None:
    history = measured(*[300.0] * 18, 2000.0, 2000.0)
    choice = choose(limits(16, 6 * 1024), history=history)
    assert choice.jobs == 15, "the median of 330 MiB counts, with its margin"
    assert choice.default_mib == 2200
    assert "as measured for 20 files" in choice.why
    assert "Files that need more (up to 2.1 GiB) wait until it is free." in choice.why
    few = choose(limits(16, 6 * 1024), history=measured(10.0, 10.0))
    assert few.jobs == 5, "two files say nothing"


@given(
    cores=st.integers(1, 512),
    available=st.integers(0, 4 << 20),
    more=st.integers(0, 4 << 20),
    job=st.integers(1, 100_000),
    peaks=st.lists(st.floats(1, 1e5), max_size=30),
)
def test_never_more_than_there_is(
    cores: int, available: int, more: int, job: int, peaks: list[float]
) -> None:
    machine = limits(cores, available, available + more)
    recipe = Recipe(name="x", job_memory_mib=job)
    choice = choose(machine, recipe=recipe, history=measured(*peaks))
    assert 1 <= choice.jobs <= cores
    assert choice.memory_mib <= max(available, UNIT_MIB)
    assert choice.default_mib >= 1
    assert choice.jobs == 1 or choice.jobs * min(choice.default_mib, 64) <= choice.memory_mib
    assert str(choice.jobs) in choice.why

"""Compile history, and the number of jobs that is chosen from it."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.meter.compile_costs import (
    Compile,
    ComponentHistory,
    CurvePoint,
    FileCost,
    History,
    JobChoice,
    MeterLog,
    StepRun,
    choose_jobs,
    parse_jobs,
)
from torchyard.builds.meter.compiler_launcher import UNIT_MIB
from torchyard.builds.recipe import Recipe
from torchyard.errors import UsageError
from torchyard.machine.facts.isolation import MachineLimits

ONE = Compile(
    output="/b/a.cpp.o",
    source="a.cpp",
    kind="compile",
    language="c++",
    tool="g++",
    start_s=0.0,
    end_s=4.0,
    wall_s=4.0,
    cpu_s=4.0,
    peak_mib=400.0,
    waited_s=0.0,
    expected_mib=1024,
    status=0,
    signal=0,
    attempt=1,
    out_of_memory=False,
    retried=False,
)


def log_of(*compiles: Compile) -> MeterLog:
    return MeterLog(compiles=compiles)


def learned(folder: Path, *logs: MeterLog) -> ComponentHistory:
    history = History(folder=folder)
    for log in logs:
        assert history.learn("pytorch", log)
    return history.read("pytorch")


def test_learned_costs_are_read_back(tmp_path: Path) -> None:
    known = learned(
        tmp_path / "new" / "folder", log_of(ONE, replace(ONE, output="/b/b.o", cpu_s=1))
    )
    assert known.files.keys() == {"a.cpp.o", "b.o"}
    assert known.files["a.cpp.o"].peak_mib == 400
    assert known.cpu_s == 5.0
    assert known.needs_mib()["a.cpp.o"] in (440, 441), "a tenth more than was measured"


def test_components_are_kept_apart(tmp_path: Path) -> None:
    history = History(folder=tmp_path)
    history.learn("a/../b", log_of(ONE))
    assert history.read("a/../b").files
    assert not history.read("b").files
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


def test_two_outputs_of_one_name_count_twice_and_the_bigger_is_reserved(tmp_path: Path) -> None:
    known = learned(
        tmp_path,
        log_of(ONE, replace(ONE, output="/b/other/a.cpp.o", cpu_s=2.0, peak_mib=900.0)),
    )
    assert known.files["a.cpp.o"].copies == 2
    assert known.cpu_s == 6.0
    assert known.files["a.cpp.o"].peak_mib == 900.0


def test_a_peak_rises_at_once_and_falls_slowly(tmp_path: Path) -> None:
    high = learned(tmp_path, log_of(ONE), log_of(replace(ONE, peak_mib=800.0)))
    assert high.files["a.cpp.o"].peak_mib == 800
    lower = learned(tmp_path, log_of(ONE))
    assert lower.files["a.cpp.o"].peak_mib == 700
    for _ in range(30):
        lower = learned(tmp_path, log_of(ONE))
    assert lower.files["a.cpp.o"].peak_mib == pytest.approx(400, abs=2)


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, status=1),
        replace(ONE, output="/b/CMakeFiles/CMakeScratch/TryCompile-1/x.o"),
        replace(ONE, output="/b/CMakeFiles/CMakeTmp/x.o"),
        replace(ONE, output="/b/cmTC_12ab3"),
        replace(ONE, output="/b/conftest.o"),
        replace(ONE, tool="sccache"),
        replace(ONE, tool="ccache", peak_mib=5.0),
    ],
)
def test_what_is_not_learned(tmp_path: Path, other: Compile) -> None:
    assert learned(tmp_path, log_of(other)).files == {}


def test_a_hit_of_the_cache_lowers_nothing(tmp_path: Path) -> None:
    hit = replace(ONE, tool="ccache", peak_mib=60.0, cpu_s=0.4)
    assert learned(tmp_path, log_of(ONE), log_of(hit)).files["a.cpp.o"].peak_mib == 400
    miss = replace(ONE, tool="ccache", peak_mib=500.0)
    assert learned(tmp_path, log_of(miss)).files["a.cpp.o"].peak_mib == 500


def test_a_compile_killed_for_memory_is_a_lower_bound(tmp_path: Path) -> None:
    killed = replace(ONE, status=-1, signal=9, out_of_memory=True, retried=True, peak_mib=3000.0)
    assert learned(tmp_path, log_of(killed, ONE)).files["a.cpp.o"].peak_mib == 3000


def test_it_is_bounded(tmp_path: Path) -> None:
    many = log_of(*(replace(ONE, output=f"/b/{number}.o") for number in range(20_500)))
    assert len(learned(tmp_path, many).files) == 20_000
    history = History(folder=tmp_path)
    curve = tuple(CurvePoint(build=0, done=n, total=999, elapsed_s=n / 7) for n in range(1000))
    for number in range(45):
        assert history.learn_step("x", f"s{number}", StepRun(wall_s=1.0, curve=curve))
    steps = history.read("x").steps
    assert len(steps) == 40
    assert "s44" in steps
    kept = steps["s44"].curve
    assert len(kept) <= 120
    assert (kept[0].done, kept[-1].done) == (0, 999)


def test_steps_come_back(tmp_path: Path) -> None:
    history = History(folder=tmp_path)
    point = CurvePoint(build=1, done=3, total=9, elapsed_s=1.25)
    run = StepRun(wall_s=12.5, jobs=2, cpu_s=20.0, curve=(point,))
    history.learn_step("x", "x/build", StepRun(wall_s=1.0))
    history.learn_step("x", "x/build", run)
    history.learn("x", log_of(ONE))
    assert history.read("x").steps == {"x/build": run}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 99, "files": {}, "steps": {}}',
        "null",
        '{"format": 1, "files": {"a": [1]}, "steps": {}}',
        '{"format": 1, "files": 3, "steps": {}}',
    ],
)
def test_a_damaged_file_counts_as_none_and_is_rewritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "pytorch.json").write_text(text)
    assert History(folder=tmp_path).read("pytorch") == ComponentHistory()
    assert "a.cpp.o" in learned(tmp_path, log_of(ONE)).files


def test_a_folder_that_cannot_be_written_is_reported_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not History(folder=tmp_path / "file" / "below").learn("x", log_of(ONE))
    assert not History(folder=Path("/proc/nothing")).learn_step("x", "y", StepRun(wall_s=1))


def _learn_ten(folder: str, writer: int) -> None:
    history = History(folder=Path(folder))
    for number in range(10):
        history.learn("shared", log_of(replace(ONE, output=f"/b/{writer}-{number}.o")))


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_learn_ten, args=(os.fspath(tmp_path), writer))
        for writer in range(4)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert len(History(folder=tmp_path).read("shared").files) == 40
    assert json.loads((tmp_path / "shared.json").read_text())["format"] == 1


def test_quantiles() -> None:
    files = {str(n): FileCost(peak_mib=float(n), cpu_s=1.0) for n in range(1, 101)}
    history = ComponentHistory(files={**files, "unknown": FileCost(peak_mib=0.0, cpu_s=1.0)})
    assert history.peak_quantile_mib(0.5) == 51
    assert history.peak_quantile_mib(1.0) == 100
    assert ComponentHistory().peak_quantile_mib(0.5) is None
    assert "unknown" not in history.needs_mib()


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

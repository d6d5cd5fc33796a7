"""Measurement of compiles in steps: variables, learned costs, leftovers of interrupted steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.plans import PATH, plan_of, shell, step
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.meter.compile_costs import History, JobChoice, read_meter_log
from torchyard.builds.meter.compiler_launcher import CacheChoice, CacheDecision, meter_actions
from torchyard.builds.plan import Command, Step, WriteFile
from torchyard.builds.recipe import BuilderKind, PythonTable, Recipe
from torchyard.builds.running.compile_progress import CompileMonitor

CHOICE = JobChoice(jobs=2, memory_mib=4096, default_mib=512, why="said by the test")
NO_CACHE = CacheDecision(choice=None, why="none")


def compiling(name: str, item: str = "true") -> Step:
    return replace(step(name, shell(item)), compiles=True)


class Workspace:
    """A watch over a plan of one component."""

    def __init__(
        self,
        folder: Path,
        *steps: Step,
        builder: BuilderKind = "cmake",
        python: PythonTable | None = None,
        cache: CacheDecision = NO_CACHE,
        **recipe: Any,
    ) -> None:
        self.places = BuildFolder(folder=folder)
        self.places.meter.mkdir(parents=True, exist_ok=True)
        plan = plan_of(folder, *steps)
        made = Recipe(name="part", builder=builder, python=python or PythonTable(), **recipe)
        part = replace(plan.components[0], recipe=made)
        self.plan = replace(plan, components=(part,), runner_variables={"MAX_JOBS": "2"})
        self.history = History(folder=folder / "history")
        self.watch = CompileMonitor(
            plan=self.plan,
            folder=self.places,
            choice=CHOICE,
            history=self.history,
            cache_for=lambda _: (cache, ()),
            passed={"https_proxy": "http://proxy", "PATH": "/the/user's"},
        )

    def log(self, *records: dict[str, Any]) -> None:
        with self.places.meter_log("part").open("a") as file:
            file.writelines(f"{json.dumps(record)}\n" for record in records)


def end(output: str, *, start: float, **more: Any) -> dict[str, Any]:
    record = {
        "event": "end",
        "id": output,
        "kind": "compile",
        "output": output,
        "language": "c",
        "source": "a.c",
        "tool": "cc",
        "start": start,
        "end": start + 1,
        "wall_s": 1.0,
        "user_s": 0.5,
        "system_s": 0.25,
        "rss_kib": 100 * 1024,
        "waited_s": 0.0,
        "expected_mib": 512,
        "units": 2,
        "attempt": 1,
        "out_of_memory": False,
        "retried": False,
        "status": 0,
        "signal": 0,
    }
    return {**record, **more}


def test_a_step_without_compiles_gets_its_own_and_the_user_s_variables(tmp_path: Path) -> None:
    item = step("install", shell("true"))
    workspace = Workspace(tmp_path, item)
    assert workspace.watch.begin(item, time.time()) == {"https_proxy": "http://proxy", "PATH": PATH}
    workspace.watch.end(item, 1.5, whole=True)
    assert workspace.watch.times["part/install"].wall_s == 1.5
    assert workspace.watch.times["part/install"].compiles == 0


def test_cmake_gets_launchers(tmp_path: Path) -> None:
    item = compiling("build")
    variables = Workspace(tmp_path, item).watch.begin(item, time.time())
    meter = str(tmp_path / "meter/meter")
    assert variables["CMAKE_CXX_COMPILER_LAUNCHER"] == meter
    assert variables["PATH"] == PATH
    assert variables["TORCHYARD_METER_JOBS"] == "2"
    assert variables["TORCHYARD_METER_LOG"] == str(tmp_path / "meter/part.log")
    assert variables["MAX_JOBS"] == "2"


def test_with_a_cache_behind_the_meter(tmp_path: Path) -> None:
    cache = CacheChoice(name="ccache", program="/usr/bin/ccache", variables={"CCACHE_X": "1"})
    item = compiling("build")
    workspace = Workspace(tmp_path, item, cache=CacheDecision(choice=cache, why="it works"))
    variables = workspace.watch.begin(item, time.time())
    assert variables["CMAKE_C_COMPILER_LAUNCHER"] == f"{tmp_path}/meter/meter"
    assert variables["TORCHYARD_METER_CACHE"] == "/usr/bin/ccache"
    assert variables["CCACHE_X"] == "1"


def test_hits_are_those_of_the_step(tmp_path: Path) -> None:
    """The cache's own counters go up with every build of the machine."""
    cache = CacheChoice(name="ccache", program="/bin/true")
    item = compiling("build")
    workspace = Workspace(tmp_path, item, cache=CacheDecision(choice=cache, why="it works"))
    stale = tmp_path / "meter/part.cache"
    stale.parent.mkdir(exist_ok=True)
    stale.write_text("cache_miss\n" * 9)
    log = Path(workspace.watch.begin(item, time.time())["CCACHE_STATSLOG"])
    assert log == stale
    assert not log.exists(), "of an earlier run"
    log.write_text("# a.c\ndirect_cache_hit\n# b.c\ncache_miss\n# c.c\npreprocessed_cache_hit\n")
    workspace.watch.end(item, 1.0, whole=True)
    assert workspace.watch.times[item.name].cache_hit_rate == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("builder", "compiles_with", "masquerades"),
    [
        ("make", "compiler", True),
        ("scons", "compiler", True),
        ("python", "compiler", True),
        ("python", "cmake", False),
        ("cmake", "compiler", False),
    ],
)
def test_projects_that_start_compilers_get_the_meter_on_the_path(
    tmp_path: Path, builder: BuilderKind, compiles_with: Any, masquerades: bool
) -> None:
    item = compiling("build")
    workspace = Workspace(
        tmp_path, item, builder=builder, python=PythonTable(compiles_with=compiles_with)
    )
    variables = workspace.watch.begin(item, time.time())
    assert (variables["PATH"] == f"{tmp_path}/meter/bin:{PATH}") is masquerades
    assert ("CMAKE_CXX_COMPILER_LAUNCHER" in variables) is not masquerades


def test_heavy_files_of_the_recipe_are_in_the_table(tmp_path: Path) -> None:
    item = compiling("build")
    Workspace(tmp_path, item, heavy={"flash_*.o": 9000}).watch.begin(item, time.time())
    assert "flash_*.o\t9000\n" in (tmp_path / "meter/part.table").read_text()


def test_partly_written_objects_are_removed(tmp_path: Path) -> None:
    item = compiling("build")
    workspace = Workspace(tmp_path, item)
    whole, half, outside = tmp_path / "whole.o", tmp_path / "half.o", tmp_path.parent / "mine.o"
    for path in (whole, half, outside):
        path.write_text("x")
    begun = {"event": "begin", "kind": "compile", "start": 1.0}
    workspace.log(
        {**begun, "id": "1", "output": str(whole)},
        end(str(whole), start=1.0, id="1"),
        {**begun, "id": "2", "output": str(half)},
        {**begun, "id": "3", "output": str(outside)},
    )
    workspace.watch.begin(item, time.time())
    assert (whole.exists(), half.exists(), outside.exists()) == (True, False, True)
    outside.unlink()


def test_copies_of_an_interrupted_step_are_repeated(tmp_path: Path) -> None:
    build, install = compiling("build"), step("install", shell("true"))
    workspace = Workspace(tmp_path, build, install, builder="python")
    copy = tmp_path / "tree/build/lib.linux/half.py"
    copy.parent.mkdir(parents=True)
    copy.touch()
    now = time.time()
    assert "CMAKE_INSTALL_ALWAYS" not in workspace.watch.begin(build, now)
    assert copy.exists(), "a first attempt leaves it: it may be somebody's edit-compile loop"
    assert "CMAKE_INSTALL_ALWAYS" in workspace.watch.begin(build, now - 3600)
    assert not copy.exists()
    assert workspace.watch.begin(install, now - 3600)["CMAKE_INSTALL_ALWAYS"] == "1"


def test_progress_is_reported_at_most_once_a_second(tmp_path: Path) -> None:
    item = compiling("build")
    workspace = Workspace(tmp_path, item)
    workspace.watch.begin(item, time.time())
    assert workspace.watch.on_output(item, b"no counts yet\n") is None
    event = workspace.watch.on_output(item, b"[1/8] Building a\n[2/8] Building b\n")
    assert event is not None
    assert (event.kind, event.step, event.done, event.total) == ("progress", "part/build", 2, 8)
    assert workspace.watch.on_output(item, b"[3/8] Building c\n") is None


def test_costs_count_from_the_first_attempt_and_are_remembered(tmp_path: Path) -> None:
    item = compiling("build")
    workspace = Workspace(tmp_path, item)
    now = time.time()
    workspace.watch.begin(item, now - 100)
    workspace.log(
        end("/x/old.o", start=now - 500),
        end("/x/before_the_kill.o", start=now - 50),
        end("/x/after.o", start=now, rss_kib=300 * 1024),
    )
    workspace.watch.end(item, 12.0, whole=True)
    times = workspace.watch.times["part/build"]
    assert (times.compiles, times.cpu_s, times.peak_memory_mib) == (2, 1.5, 300.0)
    assert times.cache_hit_rate is None
    known = workspace.history.read("part")
    assert known.files["after.o"].peak_mib == 300.0
    assert known.steps["part/build"].wall_s == 12.0


def test_an_incomplete_step_records_file_costs_only(tmp_path: Path) -> None:
    item = compiling("build")
    workspace = Workspace(tmp_path, item)
    workspace.watch.begin(item, time.time())
    workspace.log(end("/x/a.o", start=time.time()))
    workspace.watch.end(item, 1.0, whole=False)
    known = workspace.history.read("part")
    assert "a.o" in known.files
    assert known.steps == {}


def test_configure_tests_are_not_counted_as_compiles(tmp_path: Path) -> None:
    item = compiling("configure")
    workspace = Workspace(tmp_path, item)
    workspace.watch.begin(item, time.time())
    workspace.log(end("/x/cmTC_1.o", start=time.time()))
    workspace.watch.end(item, 1.0, whole=True)
    assert workspace.watch.times["part/configure"].compiles == 0


def test_steps_of_the_environment_are_measured_too(tmp_path: Path) -> None:
    item = replace(step("x", shell("true")), name="environment/meter", component="environment")
    workspace = Workspace(tmp_path, item)
    workspace.watch.begin(item, time.time())
    workspace.watch.end(item, 0.5, whole=True)
    assert workspace.watch.times["environment/meter"].wall_s == 0.5


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_real_compile_is_seen(tmp_path: Path) -> None:
    """The meter is made, put before the compiler by the variables, and its log is read."""
    item = compiling("build")
    workspace = Workspace(tmp_path, item, builder="make")
    for action in meter_actions(workspace.places.meter):
        if isinstance(action, WriteFile):
            Path(action.path).write_text(action.text)
        elif isinstance(action, Command):
            subprocess.run(action.argv, check=True, env={"PATH": PATH}, cwd=action.folder)
    variables = workspace.watch.begin(item, time.time())
    (tmp_path / "a.c").write_text("int a;\n")
    subprocess.run(["cc", "-c", "a.c", "-o", "a.o"], check=True, cwd=tmp_path, env=variables)
    workspace.watch.end(item, 1.0, whole=True)
    assert workspace.watch.times["part/build"].compiles == 1
    assert [one.name for one in read_meter_log(workspace.places.meter_log("part")).compiles] == [
        "a.o"
    ]
    assert os.access(tmp_path / "a.o", os.R_OK)


@pytest.mark.parametrize(("limit", "jobs"), [(0, "2"), (1, "1"), (2, "2"), (8, "2")])
def test_a_component_may_have_fewer_jobs_than_the_build(
    limit: int, jobs: str, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path, compiling("build"), jobs=limit)
    variables = workspace.watch.begin(workspace.plan.steps[0], time.time())
    assert variables["MAX_JOBS"] == jobs
    # The slots of the meter are those of the whole build.
    assert variables["TORCHYARD_METER_JOBS"] == "2"

"""The record of a finished build, collected afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import PATH, plan_of, shell, step
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import Plan, fingerprints
from torchyard.builds.recipe import FolderSource, GitSource, Recipe, SourceTable, VerifyTable
from torchyard.builds.record import (
    BuildRecord,
    CheckFinding,
    ComponentRecord,
    RecipeIdentity,
    SourceIdentity,
    StepTimes,
    VerifyReport,
)
from torchyard.builds.running.recording import RecordInputs, make_record
from torchyard.builds.running.runner import StepState, write_state
from torchyard.core.records import encode

IDENTITY = RecipeIdentity(name="generic", settings={"": {"X": 1}})


def run(argv: Sequence[str], variables: Mapping[str, str], /) -> subprocess.CompletedProcess[str]:
    """Where the build's commands ran: here, with little on PATH."""
    return subprocess.run(
        argv,
        env={"PATH": PATH, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


class Finished:
    """A folder as a finished build leaves it."""

    def __init__(self, folder: Path, recipe: Recipe, *, python: str = "") -> None:
        self.places = BuildFolder(folder=folder)
        folder.mkdir(exist_ok=True)
        steps = (
            step("fetch", shell("true")),
            replace(step("build", shell("true"), needs=("fetch",)), compiles=True),
            step("verify", shell("true"), needs=("build",)),
        )
        plan = plan_of(folder, *steps)
        part = replace(plan.components[0], recipe=recipe, python=python)
        self.plan: Plan = replace(plan, components=(part,))
        prints = fingerprints(self.plan)
        for number, item in enumerate(steps):
            state = StepState(
                step=item.name,
                fingerprint=prints[item.name],
                status="done",
                started_at=1_700_000_000.0 + 10 * number,
                first_started_at=1_700_000_000.0 + 10 * number,
                wall_s=3.0,
                earlier_s=1.5,
            )
            write_state(self.places.state(item.name), state)

    def record(
        self, times: Mapping[str, StepTimes] | None = None, earlier: BuildRecord | None = None
    ) -> BuildRecord:
        inputs = RecordInputs(
            recipe=IDENTITY,
            times=times or {},
            machine={"cpu": "a real one"},
            python="",
            run=run,
            earlier=earlier,
        )
        return make_record(self.plan, inputs)


def folder_recipe(source: Path, **more: object) -> Recipe:
    source.mkdir(parents=True, exist_ok=True)
    (source / "a.c").write_text("int a;\n")
    table = SourceTable(folder=FolderSource(path=str(source)))
    return replace(Recipe(name="part", version="1.2", source=table), **more)  # type: ignore[arg-type]


def test_names_times_and_machine(tmp_path: Path) -> None:
    record = Finished(tmp_path, folder_recipe(tmp_path / "source")).record()
    assert (record.name, record.recipe, record.machine) == ("plan", IDENTITY, {"cpu": "a real one"})
    assert record.started == "2023-11-14T22:13:20+00:00"
    assert record.finished == "2023-11-14T22:13:43+00:00"
    assert [one.wall_s for one in record.times] == [4.5, 4.5, 4.5], "cut-off attempts are added"
    assert len(record.plan_fingerprint) == 64


def test_the_toolchain_is_what_the_build_saw(tmp_path: Path) -> None:
    (part,) = Finished(tmp_path, folder_recipe(tmp_path / "source")).record().components
    tools = {tool.name: tool for tool in part.toolchain}
    if "cc" in tools:
        said = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
        assert tools["cc"].version in said.stdout
        assert tools["cc"].path.startswith("/")


def test_the_compilers_of_cmake_are_recorded_and_not_their_launcher(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ccache", "mycc", "nvcc", "c++"):
        (tools / name).write_text(f"#!/bin/sh\necho {name}; echo version 9.9\n")
        (tools / name).chmod(0o755)
    recipe = folder_recipe(tmp_path / "source", options={"CMAKE_C_COMPILER": "ccache mycc -m64"})
    finished = Finished(tmp_path, recipe)
    cache = Path(finished.plan.components[0].tree, "build", "CMakeCache.txt")
    cache.parent.mkdir(parents=True)
    cache.write_text(
        f"CMAKE_HOME_DIRECTORY:INTERNAL={finished.plan.components[0].tree}\n"
        f"CMAKE_C_COMPILER:FILEPATH={tools}/ccache\n"
    )
    inputs = RecordInputs(
        recipe=IDENTITY,
        times={},
        machine={},
        python="",
        run=lambda argv, variables, /: run(argv, {**variables, "PATH": f"{tools}:/usr/bin:/bin"}),
    )
    (part,) = make_record(finished.plan, inputs).components
    paths = {tool.name: tool.path for tool in part.toolchain}
    assert paths["cc"] == f"{tools}/mycc"
    assert not {"nvcc", "c++"} & set(paths), "CMake caches the languages that the project uses"


def test_an_odd_tool_does_not_hurt(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("cc", "echo 'cc (Debian 12.2.0-14) 9.9.9'"), ("cmake", "exit 1")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)

    def only_these(
        argv: Sequence[str], variables: Mapping[str, str], /
    ) -> subprocess.CompletedProcess[str]:
        return run(argv, {**variables, "PATH": f"{tools}:/bin"})

    finished = Finished(tmp_path, folder_recipe(tmp_path / "source"))
    inputs = RecordInputs(recipe=IDENTITY, times={}, machine={}, python="", run=only_these)
    (part,) = make_record(finished.plan, inputs).components
    versions = {tool.name: tool.version for tool in part.toolchain}
    assert versions["cc"] == "9.9.9", "not the packager's number in brackets"
    assert versions.get("cmake", "") == ""


def test_wheels_patches_files_and_options(tmp_path: Path) -> None:
    (tmp_path / "fix.patch").write_text("patch")
    recipe = folder_recipe(
        tmp_path / "source",
        folder=str(tmp_path),
        patches=("fix.patch",),
        options={"X": True},
        verify=VerifyTable(files=("lib/libx.so", "bin/tool")),
    )
    finished = Finished(tmp_path, recipe)
    wheel = finished.places.dist("part") / "x-1-py3-none-any.whl"
    for path in (wheel, finished.places.prefix / "lib/libx.so.1", finished.places.prefix / "other"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    (part,) = finished.record().components
    digest = hashlib.sha256(b"content").hexdigest()
    assert [(one.file, one.sha256, one.size_bytes) for one in part.wheels] == [
        (wheel.name, digest, 7)
    ]
    assert [one.sha256 for one in part.patches] == [hashlib.sha256(b"patch").hexdigest()]
    assert part.prefix_files == ("lib/libx.so.1",)
    assert part.options == {"X": True}


def test_the_report_of_the_verification(tmp_path: Path) -> None:
    finished = Finished(tmp_path, folder_recipe(tmp_path / "source"))
    report = VerifyReport(
        component="part", findings=(CheckFinding(check="x", level="warning", what="so so"),)
    )
    path = finished.places.report("part")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(encode(report)))
    assert finished.record().components[0].verified == report
    path.write_text("{half")
    assert finished.record().components[0].verified is None


def test_costs_of_steps_that_were_not_run_again_stay(tmp_path: Path) -> None:
    finished = Finished(tmp_path, folder_recipe(tmp_path / "source"))
    cost = StepTimes(step="part/build", wall_s=3.0, cpu_s=50.0, compiles=9, peak_memory_mib=70.0)
    first = finished.record({"part/build": cost})
    again = finished.record(earlier=first)
    (build,) = [one for one in again.times if one.step == "part/build"]
    assert (build.cpu_s, build.compiles, build.peak_memory_mib) == (50.0, 9, 70.0)


def test_costs_cover_the_present_objects_over_all_runs(tmp_path: Path) -> None:
    from tests.builds.running.test_compile_measurements import end

    finished = Finished(tmp_path, folder_recipe(tmp_path / "source"))
    copied = StepState(step="part/tree", fingerprint="x", status="done", started_at=1_690_000_000.0)
    write_state(finished.places.state("part/tree"), copied)
    objects = [str(tmp_path / name) for name in ("a.o", "b.o", "gone.o", "old.o", "broken.o")]
    first, second, gone, old, broken = objects
    for path in (first, second, old, broken):
        Path(path).touch()
    lines = [
        end(old, start=1_600_000_000.0),  # before the working copy was made
        end(first, start=1_690_000_010.0),
        end(second, start=1_690_000_020.0, user_s=8.0),
        end(gone, start=1_690_000_030.0),
        end(broken, start=1_690_000_040.0, status=1),
        end(first, start=1_700_000_011.0, user_s=2.0, rss_kib=300 * 1024),  # recompiled
    ]
    log = finished.places.meter_log("part")
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    latest = StepTimes(step="part/build", wall_s=3.0, cpu_s=2.0, compiles=1, cache_hit_rate=0.5)
    (build,) = [
        one for one in finished.record({"part/build": latest}).times if one.step == "part/build"
    ]
    assert build.compiles == 2
    assert build.cpu_s == pytest.approx(10.0 + 2 * lines[1]["system_s"])
    assert build.peak_memory_mib == 300.0
    assert build.cache_hit_rate == 0.5, "which only the run itself can know"
    spent_s = sum(line["end"] - line["start"] for line in lines[1:])
    assert build.wall_s == pytest.approx(max(4.5, spent_s))


def test_the_source_of_a_folder(tmp_path: Path) -> None:
    finished = Finished(tmp_path, folder_recipe(tmp_path / "origin"))
    fetched = Path(finished.plan.components[0].source)
    subprocess.run(["cp", "-a", str(tmp_path / "origin"), str(fetched)], check=True)
    source = finished.record().components[0].source
    assert source is not None
    assert (source.kind, source.origin) == ("folder", str(tmp_path / "origin"))
    assert source.digest


def test_a_source_that_was_removed_is_remembered(tmp_path: Path) -> None:
    finished = Finished(tmp_path, folder_recipe(tmp_path / "origin"))
    assert finished.record().components[0].source is None
    known = SourceIdentity(kind="folder", origin="/x", digest="d")
    part = ComponentRecord(name="part", source=known)
    earlier = BuildRecord(name="plan", recipe=IDENTITY, components=(part,))
    assert finished.record(earlier=earlier).components[0].source == known


def test_the_commit_is_that_of_the_working_copy(tmp_path: Path) -> None:
    table = SourceTable(git=GitSource(url="https://example.org/x"))
    finished = Finished(tmp_path, Recipe(name="part", source=table))
    component = finished.plan.components[0]
    commits = {}
    for place in (Path(component.source), Path(component.tree)):
        place.mkdir(parents=True)
        (place / "a").write_text(place.name)
        git = ("git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (("init", "-q"), ("add", "a"), ("commit", "-q", "-m", place.name)):
            subprocess.run([*git, *words], check=True)
        commits[place.name] = subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
    source = finished.record().components[0].source
    assert source is not None
    assert source.commit == commits[Path(component.tree).name]
    assert commits["tree"] != commits["source"]


def test_packages_of_the_interpreter(tmp_path: Path) -> None:
    recipe = folder_recipe(tmp_path / "source")
    finished = Finished(tmp_path, recipe, python=sys.executable)
    names = {package.name.lower() for package in finished.record().packages}
    assert "pytest" in names


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_source_that_may_not_be_read(tmp_path: Path) -> None:
    finished = Finished(tmp_path, folder_recipe(tmp_path / "origin"))
    fetched = Path(finished.plan.components[0].source)
    fetched.mkdir(mode=0o000)
    assert finished.record().components[0].source is None


def test_the_record_names_the_compiler_that_was_used(tmp_path: Path) -> None:
    """The one in CMakeCache.txt; without a cache, the one that the variables of the step choose."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, version in (("gcc-a", "1.1.1"), ("gcc-b", "2.2.2")):
        (tools / name).write_text(f"#!/bin/sh\necho '{name} {version}'\n")
        (tools / name).chmod(0o755)
    finished = Finished(tmp_path, folder_recipe(tmp_path / "source", builder="cmake"))
    fetch, build, verify = finished.plan.steps
    build = replace(build, variables=(*build.variables, ("CC", str(tools / "gcc-a"))))
    finished.plan = replace(finished.plan, steps=(fetch, build, verify))

    def compiler() -> tuple[str, str]:
        (part,) = finished.record().components
        return next((tool.path, tool.version) for tool in part.toolchain if tool.name == "cc")

    assert compiler() == (str(tools / "gcc-a"), "1.1.1")
    tree = Path(finished.plan.components[0].tree)
    (tree / "build").mkdir(parents=True)
    (tree / "build" / "CMakeCache.txt").write_text(
        f"CMAKE_HOME_DIRECTORY:INTERNAL={tree}\nCMAKE_C_COMPILER:FILEPATH={tools}/gcc-b\n"
    )
    assert compiler() == (f"{tools}/gcc-b", "2.2.2")

"""Plans for tests of exports: shipped recipes at neutral paths, and a small real project."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.export.image import PathRewrite
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Action, Command, Component, Plan, Step, Variables, WriteFile
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe import Recipe
from torchyard.builds.recipe_file import BuildRequest

HOME = "/yard"
FACTS = ExportFacts(home=HOME)
PYTHON = "/usr/bin/python3"

_ROOT = {"source.use": "debian", "environment.use": "debian-root"}
REQUESTS: Mapping[str, tuple[str, str, str, dict[str, Any], str]] = {
    # name -> recipe, variant, version, settings, machine
    "cpu-arm": ("pytorch", "cpu-arm", "2.13.0", {}, "aarch64"),
    "cuda-venv": ("pytorch", "cuda", "2.13.0", {"environment.use": "venv"}, "x86_64"),
    "cuda-conda": ("pytorch", "cuda", "2.13.0", {"environment.use": "conda"}, "x86_64"),
    "rocm-conda": ("pytorch", "rocm", "2.6.0", {"environment.use": "conda"}, "x86_64"),
    "arm-stack": ("arm-stack", "", "", {}, "aarch64"),
    "dev-stack": ("dev-stack", "", "", {}, "x86_64"),
    "trimmed-root": ("pytorch", "trimmed", "2.6.0", _ROOT, "x86_64"),
}
_NOT_OURS = ("meter.c", "command_line.h", "make_meter.sh", "make-root.sh")
"""Files whose text belongs to other parts, and changes with them."""


def shipped_plan(name: str, tmp_path: Path) -> Plan:
    """A plan of a shipped recipe that is the same on every machine."""
    for program in ("uv", "pixi"):
        if shutil.which(program, path=SYSTEM_PATH):
            pytest.skip(f"{program} of this machine would change the plan")
    recipe, variant, version, settings, machine = REQUESTS[name]
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    if settings.get("environment.use") == "conda":
        (programs / "micromamba").write_text("#!/bin/sh\n")
        (programs / "micromamba").chmod(0o755)
    request = BuildRequest(
        recipe=recipe, variant=variant, version=version, settings={"": settings}, machine=machine
    )
    environ = {"HOME": "/home/user", "PATH": str(programs)}
    plan = make_plan(request, home=BuildsDirectory(folder=Path(HOME)), environ=environ)
    rewrite = PathRewrite({sys.executable: PYTHON, str(programs): "/usr/local/bin"})
    return _same_everywhere(rewrite.apply(plan))


def _same_everywhere(plan: Plan) -> Plan:
    steps = []
    for step in plan.steps:
        inputs = tuple(
            (name, {"python": "cpython 3.12.3", "rocm": "6.3.4"}.get(name, value))
            for name, value in step.inputs
        )
        title = re.sub(r"Python \d[\d.]+", "Python 3.12.3", step.title)
        actions = tuple(_short(action) for action in step.actions)
        steps.append(replace(step, inputs=inputs, title=title, actions=actions))
    return replace(
        plan,
        steps=tuple(steps),
        jobs=4,
        jobs_why="4 cores, 16 GiB of memory",
        notes=tuple(note for note in plan.notes if "it cannot be cut" not in note),
        missing=(),
        runner_variables={"MAX_JOBS": "4", "CMAKE_CXX_COMPILER_LAUNCHER": f"{plan.folder}/meter"},
    )


def _short(action: Action) -> Action:
    if isinstance(action, WriteFile) and Path(action.path).name in _NOT_OURS:
        return replace(action, text=f"text of {Path(action.path).name}\n")
    return action


def hand_plan(
    *actions: Action,
    folder: Path | str = "/yard/builds/by hand",
    variables: Variables = (("PATH", SYSTEM_PATH),),
    component: Component | None = None,
    **step: Any,
) -> Plan:
    """A plan of one step, for what no recipe has."""
    component = component or hand_component(folder)
    only = Step(
        name=f"{component.name}/work",
        component=component.name,
        title="work",
        actions=actions,
        variables=variables,
        **step,
    )
    return Plan(
        name="by-hand",
        folder=str(folder),
        components=(component,),
        steps=(only,),
        jobs=2,
        jobs_why="",
    )


def hand_component(folder: Path | str, recipe: Recipe | None = None, python: str = "") -> Component:
    return Component(
        name="thing",
        recipe=recipe or Recipe(name="thing", version="1.0"),
        source="/yard/sources/thing-1.0",
        tree=f"{folder}/trees/thing",
        prefix=f"{folder}/prefix",
        wheels=f"{folder}/wheels",
        python=python,
    )


def commands_of(plan: Plan) -> list[Command]:
    return [action for step in plan.steps for action in step.actions if isinstance(action, Command)]


def small_project(folder: Path) -> Path:
    """A CMake project with a library, a program that uses it, and an option."""
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(
        """\
cmake_minimum_required(VERSION 3.16)
project(small C)
option(LOUD "say it loud" OFF)
add_library(small SHARED small.c)
add_executable(tell tell.c)
target_link_libraries(tell small)
if(LOUD)
  target_compile_definitions(small PRIVATE LOUD)
endif()
install(TARGETS small tell LIBRARY DESTINATION lib RUNTIME DESTINATION bin)
"""
    )
    (folder / "small.c").write_text(
        '#ifdef LOUD\nconst char *word(void) { return "LOUD"; }\n'
        '#else\nconst char *word(void) { return "quiet"; }\n#endif\n'
    )
    (folder / "tell.c").write_text(
        "#include <stdio.h>\nconst char *word(void);\nint main(void) { puts(word()); return 0; }\n"
    )
    return folder


def small_plan(project: Path, home: Path, **settings: Any) -> Plan:
    """The plan that builds the small project, with the generic recipe."""
    request = BuildRequest(
        recipe="generic",
        variant="cmake",
        settings={
            "": {
                "source.folder.path": str(project),
                "verify.files": ["lib/libsmall.so", "bin/tell"],
                "LOUD": True,
                **settings,
            }
        },
    )
    plan = make_plan(
        request, home=BuildsDirectory(folder=home), name="small", environ={"HOME": "/", "PATH": ""}
    )
    return replace(plan, jobs=2)

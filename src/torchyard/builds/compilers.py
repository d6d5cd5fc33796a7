"""Compilers and linker of a component: which ones it uses, and their versions as inputs of steps.

A step that compiles depends on the version of its compilers, so that an upgrade of gcc leads to a
new build. Conda environments and root folders bring their own compilers, which do not exist when
the plan is made; their package lists are part of the plan instead.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.cmake_cache import cmake_bool, cmake_value
from torchyard.builds.plan import COMPILER_INPUT, Plan, Step
from torchyard.builds.recipe import EnvironmentKind, Recipe
from torchyard.files.safe_writing import replace_file
from torchyard.process.programs import capture

_LIMIT_S: Final = 30.0
_CHOICES: Final = {
    "cc": (("CMAKE_C_COMPILER", "CC"), ("cc", "gcc", "clang")),
    "c++": (("CMAKE_CXX_COMPILER", "CXX"), ("c++", "g++", "clang++")),
    "nvcc": (("CMAKE_CUDA_COMPILER", "CUDACXX", "CUDA_NVCC_EXECUTABLE"), ("nvcc",)),
    "hipcc": (("CMAKE_HIP_COMPILER",), ("hipcc",)),
}
"""Tool -> (options and variables that choose it, names to look for on PATH)."""
_LAUNCHERS: Final = ("ccache", "sccache", "distcc", "icecc", "env")
_SWITCHES: Final = {"nvcc": ("USE_CUDA", "FORCE_CUDA"), "hipcc": ("USE_ROCM",)}
_LINKER: Final = re.compile(r"-fuse-ld=(\S+)")
_FLAGS: Final = ("LDFLAGS", "CFLAGS", "CXXFLAGS", "CMAKE_SHARED_LINKER_FLAGS")


def chosen_tools(recipe: Recipe, variables: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names by which each compiler and the linker are looked for, the first one wins."""
    settings = {**variables, **{key: cmake_value(value) for key, value in recipe.options.items()}}
    tools: dict[str, tuple[str, ...]] = {}
    for tool, (names, defaults) in _CHOICES.items():
        switches = [
            cmake_bool(settings[name]) for name in _SWITCHES.get(tool, ()) if name in settings
        ]
        if switches and not any(switches):
            continue
        chosen = next((settings[name] for name in names if settings.get(name)), "")
        word = compiler_word(chosen)
        tools[tool] = (word,) if word else defaults
    linkers = [match[1] for name in _FLAGS for match in _LINKER.finditer(settings.get(name, ""))]
    kind = linkers[-1] if linkers else settings.get("CMAKE_LINKER_TYPE", "").lower()
    tools["ld"] = (f"ld.{kind}", kind) if kind else ("ld",)
    return tools


def is_launcher(program: str) -> bool:
    """Return whether a program starts compilers: a compiler cache, or one that distributes."""
    return Path(program).name in _LAUNCHERS


def compiler_word(text: str) -> str:
    """Return the compiler in a value of CC, which may have a launcher and arguments: `ccache gcc -m64`."""
    words = (word for word in _words(text) if not is_launcher(word) and "=" not in word)
    return next(words, "")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def with_compilers(plan: Plan, kind: EnvironmentKind) -> Plan:
    """Add the versions of the compilers to the inputs of the steps that depend on them."""
    if kind in ("conda", "debian-root"):
        return plan
    return replace(plan, steps=tuple(_with_inputs(plan, step) for step in plan.steps))


def _with_inputs(plan: Plan, step: Step) -> Step:
    part = next((item for item in plan.components if item.name == step.component), None)
    # make and scons keep objects of another compiler: their working copy is made again.
    remakes = part is not None and part.recipe.builder in ("make", "scons")
    depends = step.compiles or (remakes and step.name.endswith("/tree"))
    if part is None or not depends:
        return step
    variables = dict(step.variables)
    versions = []
    for tool, names in chosen_tools(part.recipe, variables).items():
        version = _version(names, variables.get("PATH", ""))
        if version:
            versions.append((f"{COMPILER_INPUT}{tool}", version))
    return replace(step, inputs=(*step.inputs, *versions))


@cache
def _version(names: tuple[str, ...], search_path: str) -> str:
    """Return path and version of the first program that exists; empty if none does."""
    path = next(
        (program for name in names if (program := shutil.which(name, path=search_path))), ""
    )
    if not path:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        variables = {"PATH": search_path, "LC_ALL": "C.UTF-8"}
        text = capture([path, "--version"], variables=variables, limit_s=_LIMIT_S).stdout
        # The first line of nvcc is its name; the release is in the last lines.
        lines = text.strip().splitlines()
        return f"{path}: {lines[-1] if Path(path).name == 'nvcc' else lines[0]}" if lines else path
    return path


def discard_other_objects(plan: Plan, step: Step) -> str:
    """Remove the build folder if it has objects of other compilers; return a note about it.

    Ninja compares command lines, not versions: it would keep the objects of a replaced compiler.
    """
    now = "".join(
        f"{name}: {value}\n" for name, value in step.inputs if name.startswith(COMPILER_INPUT)
    )
    if not step.compiles or not now:
        return ""
    part = plan.component(step.component)
    file = BuildFolder(folder=Path(plan.folder)).compilers(part.name)
    before = file.read_text(encoding="utf-8") if file.exists() else now
    note = ""
    if before != now:
        likely = part.recipe.python.build_folder if part.recipe.builder == "python" else "build"
        shutil.rmtree(Path(part.tree, likely), ignore_errors=True)
        changed = [line for line in now.splitlines() if line not in before.splitlines()]
        note = f"compiles everything again: {'; '.join(changed) or 'fewer compilers are found'}"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, now)
    return note

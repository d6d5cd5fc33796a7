"""Real components to verify: a virtual environment and libraries compiled by gcc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds import recipe as grammar
from torchyard.builds.plan import Component
from torchyard.builds.verify.target_python import (
    EnvironmentFolders,
    ModuleFacts,
    Subject,
    TargetPython,
)

needs_gcc = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("ldd")), reason="needs gcc and ldd"
)
needs_cmake = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja")), reason="needs cmake and ninja"
)


def run_here(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The target is this machine."""
    return subprocess.run(
        list(argv), env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def make_component(folder: Path, *, python: str = "", **verify: Any) -> Component:
    """A component whose things are below `folder`, checked as `verify` says."""
    tables: dict[str, Any] = {
        key: verify.pop(key)
        for key in ("builder", "options", "python_table", "version")
        if key in verify
    }
    if "python_table" in tables:
        tables["python"] = tables.pop("python_table")
    recipe = grammar.Recipe(name="part", verify=grammar.VerifyTable(**verify), **tables)
    for name in ("tree", "prefix", "wheels"):
        (folder / name).mkdir(exist_ok=True)
    return Component(
        name="part",
        recipe=recipe,
        source=str(folder / "source"),
        tree=str(folder / "tree"),
        prefix=str(folder / "prefix"),
        wheels=str(folder / "wheels"),
        python=python,
    )


def make_subject(component: Component, **changes: Any) -> Subject:
    """A subject without an interpreter, unless one is given."""
    fields: dict[str, Any] = {
        "component": component,
        "root": "",
        "run": run_here,
        "target": None,
        "environment": EnvironmentFolders(),
        "module": None,
        "smoke_limit_s": 20.0,
    }
    return Subject(**(fields | changes))


def make_module(loaded: Sequence[str] = (), **facts: Any) -> ModuleFacts:
    """A module that imported well."""
    return ModuleFacts(name="part", file="/site/part/__init__.py", loaded=tuple(loaded), **facts)


def make_target(folder: Path, python: str = sys.executable) -> TargetPython:
    """An interpreter that works in an empty folder."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return TargetPython(python=python, run=run_here, folder=str(work))


def make_venv(folder: Path) -> tuple[str, Path]:
    """A real virtual environment without pip: its interpreter and its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin/python"), next(folder.glob("lib/python3*/site-packages"))


def make_library(
    path: Path,
    *,
    soname: str = "",
    needs: Sequence[Path] = (),
    rpath: str = "",
    code: str = "",
    flags: Sequence[str] = (),
) -> Path:
    """A shared library that gcc makes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    symbol = "".join(letter if letter.isalnum() else "_" for letter in path.name)
    source.write_text(code or f"int answer_of_{symbol}(void) {{ return 42; }}\n")
    command = ["gcc", "-shared", "-fPIC", "-o", str(path), str(source), *flags]
    command += [f"-Wl,-soname,{soname}"] if soname else []
    command += ["-Wl,--no-as-needed", *map(str, needs)]
    command += [f"-Wl,-rpath,{rpath}"] if rpath else []
    subprocess.run(command, check=True, capture_output=True)
    source.unlink()
    return path

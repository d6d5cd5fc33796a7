"""Existing environments: nothing is created or installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.builds.environments import ENVIRONMENTS, plan_environment
from torchyard.builds.environments.model import SYSTEM_PATH, EnvironmentPlan
from torchyard.builds.recipe import EnvironmentTable
from torchyard.errors import UsageError


def plan(*packages: str, python: str = "", base: str = "") -> EnvironmentPlan:
    return plan_environment(
        EnvironmentTable(use="current", python=python, base=base, libraries=("/opt/blas/lib",)),
        folder=Path("/plan"),
        packages=packages,
        where="generic: environment",
        environ={"HOME": "/h"},
    )


def test_every_kind_of_the_grammar_is_there() -> None:
    assert set(ENVIRONMENTS) == {"venv", "conda", "debian-root", "current"}


def test_library_needs_no_python() -> None:
    made = plan()
    assert made.python == ""
    assert made.steps == ()
    assert made.last_step == ()
    variables = dict(made.variables)
    assert variables["PATH"] == SYSTEM_PATH
    assert variables["LD_LIBRARY_PATH"] == "/opt/blas/lib"
    assert made.notes == ()


def test_packages_without_a_python_are_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"generic: environment\.python.*numpy") as caught:
        plan("numpy")
    assert "venv" in caught.value.hint


def test_named_environment_is_used_as_it_is(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    made = plan("numpy", python=str(tmp_path / "bin" / "python"))
    assert made.python == str(tmp_path / "bin" / "python")
    assert made.steps == ()
    variables = dict(made.variables)
    assert variables["PATH"] == f"{tmp_path}/bin:{SYSTEM_PATH}"
    assert variables["VIRTUAL_ENV"] == variables["CMAKE_PREFIX_PATH"] == str(tmp_path)
    assert "not installed" in made.notes[1]
    assert "numpy" in made.notes[1]


def test_named_conda_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    variables = dict(plan(python=str(tmp_path / "bin" / "python")).variables)
    assert variables["CONDA_PREFIX"] == str(tmp_path)
    assert "VIRTUAL_ENV" not in variables


def test_python_of_the_system_changes_no_order() -> None:
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no /usr/bin/python3 here")
    variables = dict(plan(python="/usr/bin/python3").variables)
    assert variables["PATH"] == SYSTEM_PATH
    assert "CMAKE_PREFIX_PATH" not in variables


def test_version_that_is_not_here() -> None:
    made = plan(python="3.85")
    assert made.python == "python3.85"
    assert "python3.85" in made.missing[0]


def test_base_makes_no_sense() -> None:
    with pytest.raises(UsageError, match=r"environment\.base"):
        plan(base=sys.executable)

"""Plans of virtual environments: tools and variables of later steps. Nothing is created."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.model import SYSTEM_PATH, EnvironmentPlan
from torchyard.builds.plan import Command, Plan, fingerprints
from torchyard.builds.recipe import EnvironmentTable, VenvTable
from torchyard.errors import UsageError


def plan(
    folder: Path,
    environ: dict[str, str] | None = None,
    *,
    table: EnvironmentTable | None = None,
    packages: tuple[str, ...] = (),
) -> EnvironmentPlan:
    """Without the pip.conf of this machine, which would forbid uv."""
    environ = {"HOME": "/h", "PIP_CONFIG_FILE": "/dev/null", **(environ or {})}
    return plan_environment(
        table or EnvironmentTable(),
        folder=folder,
        packages=packages,
        where="pytorch: environment",
        environ=environ,
    )


def commands(made: EnvironmentPlan, step: str) -> list[tuple[str, ...]]:
    actions = next(one for one in made.steps if one.name == step).actions
    return [action.argv for action in actions if isinstance(action, Command)]


def test_venv_is_used_without_uv(tmp_path: Path) -> None:
    made = plan(tmp_path, packages=("numpy", "setuptools<80"))
    environment = f"{tmp_path}/env"
    assert made.kind == "venv"
    assert made.python == f"{environment}/bin/python"
    assert made.root == ""
    assert [step.name for step in made.steps] == ["environment/python", "environment/packages"]
    assert all(step.network for step in made.steps)
    assert all(step.component == "environment" for step in made.steps)
    assert made.steps[1].needs == ("environment/python",)
    assert made.last_step == ("environment/packages",)
    assert commands(made, "environment/python") == [
        (sys.executable, "-m", "venv", "--clear", "--", environment)
    ]
    (install,) = commands(made, "environment/packages")
    assert install[:4] == (made.python, "-m", "pip", "install")
    assert install[-3:] == ("--", "numpy", "setuptools<80")
    assert made.missing == ()


def test_packages_of_recipe_and_components_once_each(tmp_path: Path) -> None:
    table = EnvironmentTable(venv=VenvTable(packages=("numpy", "pyyaml")))
    made = plan(tmp_path, table=table, packages=("pyyaml", "six", "numpy"))
    (install,) = commands(made, "environment/packages")
    assert install[-4:] == ("--", "numpy", "pyyaml", "six")


def test_nothing_to_install_is_no_step(tmp_path: Path) -> None:
    assert [step.name for step in plan(tmp_path).steps] == ["environment/python"]


def test_order_of_folders(tmp_path: Path) -> None:
    table = EnvironmentTable(
        path=("/opt/rocm/bin",),
        include=("/opt/acl", "/opt/acl/include"),
        libraries=("/opt/acl/build",),
        variables={"ACL_ROOT_DIR": "/opt/acl", "LANG": "de_DE.UTF-8"},
    )
    variables = dict(plan(tmp_path, table=table).variables)
    environment = f"{tmp_path}/env"
    assert variables["PATH"] == f"/opt/rocm/bin:{environment}/bin:{SYSTEM_PATH}"
    assert variables["VIRTUAL_ENV"] == environment
    assert variables["CMAKE_PREFIX_PATH"] == environment
    assert variables["CPATH"] == "/opt/acl:/opt/acl/include"
    assert variables["LIBRARY_PATH"] == variables["LD_LIBRARY_PATH"] == "/opt/acl/build"
    assert variables["PYTHONNOUSERSITE"] == "1"
    assert variables["ACL_ROOT_DIR"] == "/opt/acl"
    assert variables["LANG"] == "de_DE.UTF-8", "the recipe's own variables win"


def test_no_library_path_where_nothing_asks_for_one(tmp_path: Path) -> None:
    variables = dict(plan(tmp_path).variables)
    assert not {"LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PIP_CONSTRAINT"}.intersection(
        variables
    )


def test_fingerprints_do_not_depend_on_the_shell(tmp_path: Path) -> None:
    def prints(environ: dict[str, str]) -> dict[str, str]:
        made = plan(tmp_path, environ, packages=("numpy",))
        whole = Plan(
            name="x", folder=str(tmp_path), components=(), steps=made.steps, jobs=1, jobs_why=""
        )
        return dict(fingerprints(whole))

    noisy = {
        "TERM": "xterm",
        "https_proxy": "http://proxy.example:3128",
        "PIP_DEFAULT_TIMEOUT": "9",
        "PATH": "/somewhere/else",
        "LANG": "fr_FR.UTF-8",
        "MAX_JOBS": "3",
    }
    assert prints({}) == prints(noisy)


def test_dropped_variables_are_in_the_notes(tmp_path: Path) -> None:
    notes = " ".join(plan(tmp_path, {"CFLAGS": "-O0", "LD_LIBRARY_PATH": "/x"}).notes)
    assert "CFLAGS, LD_LIBRARY_PATH" in notes


def test_uv_where_it_is(tmp_path: Path, programs: Path, make_program: Callable[..., Path]) -> None:
    uv = str(make_program("uv"))
    made = plan(tmp_path, {"PATH": str(programs)}, packages=("numpy",))
    environment = f"{tmp_path}/env"
    assert commands(made, "environment/python") == [
        ("rm", "-rf", "--", environment),
        (uv, "venv", "--python", sys.executable, environment),
        (uv, "pip", "install", "--python", made.python, "--", "pip"),
    ]
    assert commands(made, "environment/packages") == [
        (uv, "pip", "install", "--python", made.python, "--", "numpy")
    ]
    assert "the environment is created by uv" in made.notes[0]


def test_pip_where_uv_would_miss_its_settings(
    tmp_path: Path, programs: Path, make_program: Callable[..., Path]
) -> None:
    make_program("uv")
    environ = {"PATH": str(programs), "PIP_FIND_LINKS": "/wheels"}
    made = plan(tmp_path, environ, packages=("numpy",))
    assert commands(made, "environment/packages")[0][0] == made.python
    assert "PIP_FIND_LINKS" in made.notes[0]
    assert "/wheels" not in made.notes[0]
    told = plan(tmp_path, {**environ, "UV_FIND_LINKS": "/wheels"}, packages=("numpy",))
    assert commands(told, "environment/packages")[0][0] == str(programs / "uv")


def test_pip_over_a_base(tmp_path: Path, programs: Path, make_program: Callable[..., Path]) -> None:
    make_program("uv")
    table = EnvironmentTable(base=sys.executable)
    made = plan(tmp_path / "a b", {"PATH": str(programs)}, table=table, packages=("numpy",))
    assert commands(made, "environment/packages")[0][0] == made.python
    assert "uv does not see the packages of the base" in made.notes[0]
    assert sys.executable in made.notes[1]
    constraint = dict(made.variables)["PIP_CONSTRAINT"]
    assert constraint == (tmp_path / "a b" / "base-constraints.txt").as_uri()
    assert "PIP_CONSTRAINT" not in dict(made.steps[0].variables), "ensurepip runs before it exists"


def test_version_of_python_counts_in_the_fingerprint(tmp_path: Path, programs: Path) -> None:
    def inputs(version: str) -> tuple[tuple[str, str], ...]:
        program = programs / f"python{version}"
        program.write_text(f'#!/bin/sh\necho \'["{version}.1", "cpython", true]\'\n')
        program.chmod(0o755)
        table = EnvironmentTable(python=version)
        return plan(tmp_path, {"PATH": str(programs)}, table=table).steps[0].inputs

    assert inputs("3.81") == (("python", "cpython 3.81.1"),)
    assert inputs("3.82") == (("python", "cpython 3.82.1"),)


def test_missing_python_is_reported_and_can_be_planned(tmp_path: Path) -> None:
    made = plan(tmp_path, table=EnvironmentTable(python="3.83"))
    assert made.missing == ("python3.83 (install it, or give another environment.python)",)
    assert commands(made, "environment/python")[0][0] == "python3.83"


def test_python_that_cannot_make_environments(tmp_path: Path, programs: Path) -> None:
    program = programs / "python3.84"
    program.write_text('#!/bin/sh\necho \'["3.84.0", "cpython", false]\'\n')
    program.chmod(0o755)
    made = plan(tmp_path, {"PATH": str(programs)}, table=EnvironmentTable(python="3.84"))
    assert made.missing == (f"ensurepip of {program} (apt-get install python3.84-venv)",)


def test_errors_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pytorch: environment\.base"):
        plan(tmp_path, table=EnvironmentTable(base="/nowhere/python"))
    with pytest.raises(UsageError, match=r"pytorch: environment\.python"):
        plan(tmp_path, table=EnvironmentTable(python="newest"))

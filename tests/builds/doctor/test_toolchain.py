"""The toolchain: test compilations, headers of the interpreter, programs of the steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine, running_python, severities
from torchyard.builds.plan import Command
from torchyard.builds.recipe import (
    CondaTable,
    DebianRootTable,
    EnvironmentTable,
    GitSource,
    Recipe,
    SourceTable,
    VenvTable,
)

TORCH = Recipe(name="pytorch", known_release="pytorch", version="2.13.0", builder="python")
REAL_COMPILER = shutil.which("c++", path="/usr/bin:/bin")


class TestCompilers:
    def test_a_real_compiler_compiles_links_and_runs(self, machine: FakeMachine) -> None:
        if REAL_COMPILER is None:
            pytest.skip("no C++ compiler here")
        machine.real_tools = True
        assert machine.examine(only="compilers") == ()

    def test_flags_of_the_build_are_tried_too(self, machine: FakeMachine) -> None:
        if REAL_COMPILER is None:
            pytest.skip("no C++ compiler here")
        machine.real_tools = True
        machine.variables["LDFLAGS"] = "-L/nowhere -lno_such_library_here"
        (finding,) = machine.examine(only="compilers")
        assert finding.severity == "blocks"
        assert any("no_such_library_here" in line for line in finding.detail)

    def test_none(self, machine: FakeMachine) -> None:
        findings = machine.examine(TORCH, only="compilers")
        assert severities(findings) == ["blocks", "blocks"]
        assert findings[1].fix == "apt-get install g++"

    def test_named_and_not_there(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.variables["CXX"] = "/opt/gcc/bin/g++"
        (finding,) = machine.examine(only="compilers")
        assert finding.what == "CXX is /opt/gcc/bin/g++, which does not exist"
        assert finding.fix == "unset CXX"

    def test_fake_compilers_work(self, machine: FakeMachine) -> None:
        machine.good_tools()
        assert machine.examine(TORCH, only="compilers") == ()

    def test_without_openmp(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp(name="c++", broken="-fopenmp")
        (finding,) = machine.examine(TORCH, only="compilers")
        assert (finding.severity, "OpenMP" in finding.what) == ("warns", True)
        assert finding.detail == ("error: unrecognized -fopenmp",)
        wants = Recipe(name="pytorch", version="2.13.0", options={"USE_OPENMP": True})
        assert severities(machine.examine(wants, only="compilers")) == ["blocks"]

    def test_standard_that_is_not_known(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp(name="c++", broken="-std=c++20")
        (finding,) = machine.examine(TORCH, only="compilers")
        assert finding.what.endswith("does not support C++20")
        older = Recipe(name="pytorch", version="2.6.0")
        assert machine.examine(older, only="compilers") == ()

    def test_program_that_does_not_run(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.program(
            "c++",
            "case \"$*\" in *--version*) echo 'g++ (X 1.0) 13.1.0';; *)"
            " echo '#!/bin/sh' > probe; echo 'echo libgomp.so.1: cannot open; exit 127' >> probe;"
            " /bin/chmod +x probe;; esac",
        )
        (finding,) = machine.examine(only="compilers")
        assert finding.severity == "blocks"
        assert "cannot open" in finding.detail[0]

    def test_compilers_of_an_environment_that_is_not_made_are_not_asked(
        self, machine: FakeMachine
    ) -> None:
        for table in (
            EnvironmentTable(use="conda", conda=CondaTable(packages=("gxx",))),
            EnvironmentTable(use="debian-root", debian_root=DebianRootTable()),
        ):
            recipe = Recipe(name="pytorch", version="2.13.0", environment=table)
            assert machine.examine(recipe, only="compilers") == ()


class TestPythonHeaders:
    def fake_python(self, machine: FakeMachine, include: Path) -> str:
        """Says that it is 3.12 and where its headers are."""
        script = (
            'case "$*" in\n*sysconfig*) echo noise; echo "torchyard 3.12 '
            f'{include}" ;;\n*) echo \'["3.12.4", "cpython", true]\' ;;\nesac'
        )
        return str(machine.program("python3.12", script))

    def recipe(self, python: str) -> Recipe:
        table = EnvironmentTable(use="venv", python=python)
        return Recipe(name="pytorch", version="2.13.0", builder="python", environment=table)

    def test_headers_are_there(self, machine: FakeMachine, tmp_path: Path) -> None:
        (tmp_path / "Python.h").touch()
        python = self.fake_python(machine, tmp_path)
        assert machine.examine(self.recipe(python), only="python-headers") == ()

    def test_headers_are_missing(self, machine: FakeMachine, tmp_path: Path) -> None:
        python = self.fake_python(machine, tmp_path)
        (finding,) = machine.examine(self.recipe(python), only="python-headers")
        assert finding.severity == "blocks"
        assert finding.fix == "apt-get install python3.12-dev"

    def test_no_such_interpreter(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(self.recipe("/no/such/python"), only="python-headers")
        assert finding.what == "there is no interpreter /no/such/python"
        (finding,) = machine.examine(self.recipe("3.77"), only="python-headers")
        assert "python3.77-dev" in finding.fix

    def test_uv_can_fetch_one(self, machine: FakeMachine) -> None:
        machine.says("uv", "uv 0.5.0")
        assert machine.examine(self.recipe("3.77"), only="python-headers") == ()

    def test_interpreter_that_does_not_answer(self, machine: FakeMachine) -> None:
        script = (
            'case "$*" in *sysconfig*) echo broken; exit 1;; esac\necho \'["3.12.4", "c", true]\''
        )
        python = str(machine.program("python3.12", script))
        (finding,) = machine.examine(self.recipe(python), only="python-headers")
        assert (finding.what, finding.detail) == (f"{python} does not run", ("broken",))

    def test_projects_without_python_need_none(self, machine: FakeMachine) -> None:
        recipe = Recipe(name="openblas", environment=EnvironmentTable(python="/no/such/python"))
        assert machine.examine(recipe, only="python-headers") == ()

    def test_the_running_interpreter(self, machine: FakeMachine) -> None:
        import sysconfig

        findings = machine.examine(self.recipe(running_python()), only="python-headers")
        has_headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()
        assert severities(findings) == ([] if has_headers else ["blocks"])


class TestPrograms:
    def test_sources_and_builders_of_a_recipe(self, machine: FakeMachine) -> None:
        source = SourceTable(use="git", git=GitSource(url="https://example.org/x"))
        recipe = Recipe(
            name="openblas",
            builder="cmake",
            source=source,
            environment=EnvironmentTable(use="current"),
        )
        findings = machine.examine(recipe, only="programs")
        assert [f.what for f in findings] == [
            "git is missing",
            "cmake is missing",
            "ninja is missing",
        ]
        assert findings[2].fix == "apt-get install ninja-build, or pip install ninja"
        machine.good_tools()
        assert machine.examine(recipe, only="programs") == ()

    def test_debian_sources(self, machine: FakeMachine) -> None:
        recipe = Recipe(name="x", builder="none", source=SourceTable(use="debian"))
        findings = machine.examine(recipe, only="programs")
        assert [f.what for f in findings] == ["apt-get is missing", "dpkg-source is missing"]
        assert "source.use=git" in findings[0].fix
        assert findings[1].fix == "apt-get install dpkg-dev"

    def test_what_the_environment_brings_is_not_missing(self, machine: FakeMachine) -> None:
        venv = EnvironmentTable(venv=VenvTable(packages=("cmake>=3.27", "ninja")))
        assert machine.examine(Recipe(name="x", environment=venv), only="programs") == ()
        conda = EnvironmentTable(use="conda", conda=CondaTable(packages=("cmake=3.26", "ninja")))
        assert machine.examine(Recipe(name="x", environment=conda), only="programs") == ()

    def test_programs_of_a_plan(self, machine: FakeMachine) -> None:
        machine.says("git", "git version 2.43.0")
        machine.says("hidden", "1.0", folder=machine.folder / "elsewhere")
        commands = (
            Command(argv=("git", "clone")),
            Command(argv=("scons", "-j2")),
            Command(argv=("hidden",), variables=(("PATH", str(machine.folder / "elsewhere")),)),
            Command(argv=(f"{machine.folder}/build/env/bin/python", "-m", "build")),
            Command(argv=("scons", "install")),
            Command(argv=("/no/such/program",)),
        )
        plan = machine.plan(Recipe(name="acl"), commands=commands)
        findings = machine.examine(plan=plan, only="programs")
        assert [f.what for f in findings] == ["scons is missing", "/no/such/program is missing"]
        assert findings[0].why == "the step pytorch/build runs it"

    def test_programs_inside_a_root_folder_are_its_own(self, machine: FakeMachine) -> None:
        commands = (
            Command(argv=("cmake", "--build", ".")),
            Command(argv=("mmdebstrap",), inside_root=False),
        )
        plan = machine.plan(Recipe(name="x"), commands=commands, root="/some/root")
        (finding,) = machine.examine(plan=plan, only="programs")
        assert finding.what == "mmdebstrap is missing"

"""The toolchain: versions, test compilations, headers of the interpreter, programs of the steps."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine, running_python, severities
from torchyard.builds.doctor.toolchain import cudnn_version, found_versions
from torchyard.builds.plan import Command
from torchyard.builds.recipe import (
    BuilderKind,
    CondaTable,
    DebianRootTable,
    EnvironmentTable,
    GitSource,
    Recipe,
    Scalar,
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

    def test_a_chosen_gcc_that_is_not_installed(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp(name="g++-12")
        machine.variables["CXX"] = "g++-13"
        table = EnvironmentTable(use="current", gcc="13")
        (finding,) = machine.examine(Recipe(name="x", environment=table), only="compilers")
        assert finding.fix == "apt-get install g++-13; or --set environment.gcc=12"

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


def torch(
    version: str = "2.8.0",
    environment: EnvironmentTable | None = None,
    builder: BuilderKind = "python",
    **options: Scalar,
) -> Recipe:
    return Recipe(
        name="pytorch",
        known_release="pytorch",
        version=version,
        builder=builder,
        environment=environment or EnvironmentTable(use="current", python=running_python()),
        options=options,
    )


def whats(machine: FakeMachine, recipe: Recipe, *, architecture: str = "x86_64") -> list[str]:
    findings = machine.examine(recipe, only="versions", architecture=architecture)
    return [f.what for f in findings if f.severity != "notes"]


class TestCurrentEnvironment:
    def test_old_cmake_blocks(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("cmake", "cmake version 3.25.1")
        assert "cmake 3.25.1 does not fit pytorch 2.8" in whats(machine, torch())

    def test_old_gcc_blocks(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp("10.2.0", name="c++")
        assert "gcc 10.2.0 does not fit pytorch 2.13" in whats(machine, torch("2.13.0"))

    def test_clang_is_not_checked_as_gcc(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("c++", "Ubuntu clang version 9.0.1-12")
        assert not any("gcc" in what for what in whats(machine, torch("2.13.0")))

    def test_compiler_named_by_variable(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp("8.5.0", name="g++-8")
        machine.variables["CXX"] = "ccache g++-8 -m64"
        assert "gcc 8.5.0 does not fit pytorch 2.6" in whats(machine, torch("2.6.0"))

    def test_setuptools_of_the_interpreter(self, machine: FakeMachine) -> None:
        machine.good_tools()
        site = machine.folder / "packages"
        meta = site / "setuptools-82.0.1.dist-info"
        meta.mkdir(parents=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: setuptools\nVersion: 82.0.1\n")
        machine.variables["PYTHONPATH"] = str(site)
        assert "setuptools 82.0.1 does not fit pytorch 2.8" in whats(machine, torch())

    def test_sve_problem_on_arm_only(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.gpp("14.2.0", name="c++")
        recipe = torch("2.6.0")
        assert any("SVE" in what for what in whats(machine, recipe, architecture="aarch64"))
        assert not any("SVE" in what for what in whats(machine, recipe))

    def test_cmake_4_accepts_the_policy_option(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("cmake", "cmake version 4.1.2")
        assert any("CMake 4" in what for what in whats(machine, torch("2.6.0")))
        fixed = torch("2.6.0", CMAKE_POLICY_VERSION_MINIMUM="3.5")
        assert not any("CMake 4" in what for what in whats(machine, fixed))

    def test_cuda_is_checked_only_where_it_is_used(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.nvcc("11.8.89")
        assert not any("cuda" in what for what in whats(machine, torch("2.13.0")))
        used = torch("2.13.0", USE_CUDA=True)
        assert "cuda 11.8.89 does not fit pytorch 2.13" in whats(machine, used)

    def test_glibc_and_cuda(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.nvcc("12.8.93")
        machine.says("ldd", "ldd (Debian GLIBC 2.41-12) 2.41")
        recipe = torch("2.11.0", USE_CUDA=True)
        assert any("clash" in what for what in whats(machine, recipe))

    def test_unknown_release_is_reported(self, machine: FakeMachine) -> None:
        machine.good_tools()
        findings = machine.examine(torch("2.99.0"), only="versions")
        assert any("2.99.0 is newer" in f.what for f in findings if f.severity == "notes")


class TestOtherEnvironments:
    def test_a_venv_brings_its_own_cmake_and_setuptools(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("cmake", "cmake version 3.25.1")
        venv = EnvironmentTable(use="venv", python=running_python())
        assert not any("cmake" in what for what in whats(machine, torch(environment=venv)))
        # A project that pip brings no CMake for meets the machine's.
        plain = torch(environment=venv, builder="cmake")
        assert any("cmake 3.25.1" in what for what in whats(machine, plain))

    def test_a_venv_that_lists_cmake(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("cmake", "cmake version 3.25.1")
        table = VenvTable(packages=("CMake>=3.27", "not a requirement !!"))
        venv = EnvironmentTable(use="venv", python=running_python(), venv=table)
        recipe = torch(environment=venv, builder="cmake")
        assert not any("cmake" in what for what in whats(machine, recipe))

    def test_a_venv_that_is_made_is_examined(self, machine: FakeMachine) -> None:
        machine.good_tools()
        env = machine.folder / "build" / "env" / "bin"
        machine.says("cmake", "cmake version 3.26.0", folder=env)
        python = machine.says("python", "Python 3.12.3", folder=env)
        recipe = torch(environment=EnvironmentTable(use="venv"))
        variables = {**machine.environ, "PATH": f"{env}:{machine.bin}"}
        plan = machine.plan(recipe, python=str(python), variables=variables)
        findings = machine.examine(plan=plan, only="versions")
        assert "cmake 3.26.0 does not fit pytorch 2.8" in [f.what for f in findings]

    @pytest.mark.parametrize(
        ("packages", "found"),
        [
            (
                ("gxx_linux-64=10.3.0", "cmake=3.26", "python=3.11"),
                {"gcc": "10.3.0", "cmake": "3.26"},
            ),
            (("nvidia/label/cuda-12.2.0::cuda-toolkit",), {"cuda": "12.2.0"}),
            (("cuda-toolkit=12.8.0", "cmake>=3.27,<4"), {"cuda": "12.8.0"}),
            (("magma=2.9", "ninja"), {"magma": "2.9"}),
        ],
    )
    def test_conda_brings_what_it_pins(
        self, packages: tuple[str, ...], found: dict[str, str], machine: FakeMachine
    ) -> None:
        table = EnvironmentTable(use="conda", conda=CondaTable(packages=packages))
        recipe = torch("2.4.0", environment=table, USE_CUDA=True)
        versions = found_versions(machine.context(recipe), recipe)
        versions.pop("python", None)
        assert versions == found

    def test_what_pip_installs_into_conda_replaces_that_of_the_machine(
        self, machine: FakeMachine
    ) -> None:
        machine.says("cmake", "cmake version 3.25.1")
        table = EnvironmentTable(use="conda", conda=CondaTable(packages=("ninja",)))
        assert "cmake" not in found_versions(
            machine.context(replace(TORCH, environment=table)), TORCH
        )
        machine.says("cmake", "cmake version 3.25.1")
        plain = replace(TORCH, environment=EnvironmentTable(use="current"))
        assert found_versions(machine.context(plain), plain)["cmake"] == "3.25.1"

    def test_old_gcc_of_conda_blocks_a_new_release(self, machine: FakeMachine) -> None:
        table = EnvironmentTable(use="conda", conda=CondaTable(packages=("gxx_linux-64=10.3.0",)))
        recipe = torch("2.13.0", environment=table)
        assert whats(machine, recipe) == ["gcc 10.3.0 does not fit pytorch 2.13"]

    def test_a_root_folder_has_the_tools_of_its_suite(self, machine: FakeMachine) -> None:
        machine.says("cmake", "cmake version 3.1.0")
        old = EnvironmentTable(use="debian-root", debian_root=DebianRootTable(suite="bookworm"))
        assert whats(machine, torch(environment=old)) == ["cmake 3.25.1 does not fit pytorch 2.8"]
        new = EnvironmentTable(use="debian-root", debian_root=DebianRootTable(suite="trixie"))
        assert whats(machine, torch(environment=new)) == []
        unknown = EnvironmentTable(use="debian-root", debian_root=DebianRootTable(suite="forky"))
        assert whats(machine, torch(environment=unknown)) == []


class TestGeneral:
    def test_without_a_recipe_versions_are_notes(self, machine: FakeMachine) -> None:
        machine.good_tools()
        machine.says("cmake", "cmake version 3.20.0")
        findings = machine.examine(only="versions")
        assert "notes" in severities(findings)
        assert set(severities(findings)) == {"notes"}

    def test_projects_that_the_table_lacks_are_not_checked(self, machine: FakeMachine) -> None:
        machine.says("cmake", "cmake version 2.8.0")
        assert machine.examine(Recipe(name="openblas", version="0.3.29"), only="versions") == ()


class TestCudnn:
    def test_version_of_the_header(self, machine: FakeMachine, tmp_path: Path) -> None:
        text = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 10\n#define CUDNN_PATCHLEVEL 2\n"
        machine.file("usr/include/cudnn_version.h", text)
        assert cudnn_version(machine.context()) == "9.10.2"
        (tmp_path / "include").mkdir()
        (tmp_path / "include/cudnn_version.h").write_text(text.replace("9", "8"), encoding="utf-8")
        machine.variables["CUDNN_ROOT"] = str(tmp_path)
        assert cudnn_version(machine.context()) == "8.10.2"

    def test_where_ubuntu_keeps_it(self, machine: FakeMachine) -> None:
        text = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n#define CUDNN_PATCHLEVEL 0\n"
        machine.file("usr/include/x86_64-linux-gnu/cudnn_version.h", text)
        assert cudnn_version(machine.context()) == "9.1.0"

    def test_none(self, machine: FakeMachine) -> None:
        assert cudnn_version(machine.context()) == ""


class TestArchitecture:
    def test_a_recipe_for_another_processor(self, machine: FakeMachine) -> None:
        arm = Recipe(name="arm-compute-library", architectures=("aarch64",))
        (finding,) = machine.examine(arm, only="architecture")
        assert finding.severity == "blocks"
        assert "is for aarch64, but this machine is x86_64" in finding.what
        assert machine.examine(arm, only="architecture", architecture="aarch64") == ()
        assert machine.examine(TORCH, only="architecture") == ()

    def test_mpi_without_its_compiler(self, machine: FakeMachine) -> None:
        recipe = Recipe(name="pytorch", version="2.6.0", options={"USE_MPI": True})
        (finding,) = machine.examine(recipe, only="architecture")
        assert (finding.severity, "mpicc" in finding.what) == ("blocks", True)
        assert finding.fix.startswith("apt-get install libopenmpi-dev")
        machine.says("mpicc", "gcc 12")
        assert machine.examine(recipe, only="architecture") == ()


class TestReleases:
    def test_a_release_before_the_table_is_refused(self, machine: FakeMachine) -> None:
        machine.good_tools()
        old = Recipe(name="pytorch", known_release="pytorch", version="1.8.1", builder="python")
        (finding,) = machine.examine(old, only="versions")
        assert finding.what == "pytorch 1.8.1 is not supported: the oldest release is 2.4"
        assert finding.severity == "blocks"
        newer = Recipe(name="pytorch", known_release="pytorch", version="2.99.0", builder="python")
        assert "blocks" not in severities(machine.examine(newer, only="versions"))

    def test_the_python_of_a_conda_environment(self, machine: FakeMachine) -> None:
        machine.good_tools()

        def findings(version: str, *packages: str) -> list[str]:
            table = EnvironmentTable(
                use="conda", python=version, conda=CondaTable(packages=packages)
            )
            recipe = Recipe(
                name="pytorch",
                known_release="pytorch",
                version="2.4.0",
                builder="python",
                environment=table,
            )
            return [f.what for f in machine.examine(recipe, only="versions") if "python" in f.what]

        assert findings("3.14") == ["python 3.14 does not fit pytorch 2.4"]
        assert findings("", "python=3.14") == ["python 3.14 does not fit pytorch 2.4"]
        assert findings("3.12") == findings("") == []

    @pytest.mark.parametrize("tool", ["conda", "micromamba"])
    def test_a_missing_conda_is_not_a_package(self, machine: FakeMachine, tool: str) -> None:
        plan = machine.plan(TORCH, commands=(Command(argv=(tool, "create")),))
        (finding,) = machine.examine(plan=plan, only="programs")
        assert "Miniforge" in finding.fix
        assert "py-rattler" in finding.fix
        assert "apt-get" not in finding.fix


class TestPackageNames:
    @pytest.mark.parametrize(
        ("release", "command"),
        [
            ("ID=debian", "apt-get install g++"),
            ("ID=ubuntu\nID_LIKE=debian", "apt-get install g++"),
            ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install gcc-c++"),
            ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "zypper install gcc-c++"),
            ("ID=arch", "pacman -S gcc"),
            ("ID=alpine", "apk add g++"),
            ("ID=nixos", "install g++ with the package manager of this distribution"),
        ],
    )
    def test_of_the_distribution(self, machine: FakeMachine, release: str, command: str) -> None:
        machine.file("etc/os-release", f"{release}\n")
        assert machine.examine(TORCH, only="compilers")[1].fix == command

    def test_a_package_that_apt_does_not_have(self, machine: FakeMachine) -> None:
        machine.program("apt-cache", 'case "$*" in *" gcc") exit 0 ;; *) exit 100 ;; esac')
        fix = machine.examine(TORCH, only="compilers")[1].fix
        assert fix.startswith("apt-get install g++ (the package lists of this machine have no g++")
        # apt reads g++-12 as a pattern, which clang-12 matches.
        exact = 'case "$*" in *" gcc"|*" g++") exit 0 ;; *) exit 100 ;; esac'
        machine.program("apt-cache", exact)
        assert "have no g++" in machine.examine(TORCH, only="compilers")[1].fix
        machine.program("apt-cache", "exit 100")  # no lists at all
        assert machine.examine(TORCH, only="compilers")[1].fix == "apt-get install g++"

"""Libraries that would be loaded or linked: libstdc++, LD_LIBRARY_PATH, BLAS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine, severities
from torchyard.builds.doctor.search_paths import compilers_library, glibcxx_of
from torchyard.builds.recipe import EnvironmentTable, Recipe, Scalar


def libstdcxx(folder: Path, newest: int) -> Path:
    """A file with the version names that a libstdc++ has."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libstdc++.so.6"
    names = b"".join(b"GLIBCXX_3.4.%d\0" % number for number in range(newest + 1))
    path.write_bytes(b"\x7fELF\0GLIBCXX_3.4\0" + names + b"GLIBCXX_DEBUG_MESSAGE_LENGTH\0")
    return path


class TestLibstdcxx:
    def test_newest_version_is_by_number(self, tmp_path: Path) -> None:
        assert glibcxx_of(libstdcxx(tmp_path, 30)) == (3, 4, 30)
        assert glibcxx_of(tmp_path / "none") == ()

    def test_the_real_compilers_own(self, machine: FakeMachine) -> None:
        machine.real_tools = True
        path = compilers_library(machine.context(), "libstdc++.so.6")
        if path is None:
            pytest.skip("no C++ compiler here")
        assert glibcxx_of(path) >= (3, 4, 20)
        assert compilers_library(machine.context(), "libno_such_thing.so") is None

    def test_conda_environment_with_an_older_one(self, machine: FakeMachine) -> None:
        machine.good_tools()
        libstdcxx(machine.folder / "gcc", 32)
        conda = machine.folder / "conda"
        libstdcxx(conda / "lib", 29)
        machine.variables["CONDA_PREFIX"] = str(conda)
        (finding,) = machine.examine(only="libstdc++")
        assert finding.severity == "warns"
        assert "only has GLIBCXX_3.4.29" in finding.why
        assert "3.4.32" in finding.why
        assert "conda install" in finding.fix

    def test_conda_environment_with_a_newer_one(self, machine: FakeMachine) -> None:
        machine.good_tools()
        libstdcxx(machine.folder / "gcc", 30)
        libstdcxx(machine.folder / "conda/lib", 33)
        machine.variables["CONDA_PREFIX"] = str(machine.folder / "conda")
        assert machine.examine(only="libstdc++") == ()

    def test_library_path_comes_first(self, machine: FakeMachine) -> None:
        machine.good_tools()
        libstdcxx(machine.folder / "gcc", 30)
        libstdcxx(machine.folder / "conda/lib", 33)
        old = libstdcxx(machine.folder / "matlab", 22)
        machine.variables["CONDA_PREFIX"] = str(machine.folder / "conda")
        machine.variables["LD_LIBRARY_PATH"] = f"/nowhere:{old.parent}"
        (finding,) = machine.examine(only="libstdc++")
        assert finding.fix == f"remove {old.parent} from LD_LIBRARY_PATH"

    def test_the_compilers_own_folder_is_not_a_trap(self, machine: FakeMachine) -> None:
        machine.good_tools()
        own = libstdcxx(machine.folder / "gcc", 30)
        machine.variables["LD_LIBRARY_PATH"] = str(own.parent)
        assert machine.examine(only="libstdc++") == ()


class TestLibraryPath:
    def test_empty_entry(self, machine: FakeMachine) -> None:
        machine.variables["LD_LIBRARY_PATH"] = "/opt/x:"
        (finding,) = machine.examine(only="library-path")
        assert "empty entry" in finding.what

    @pytest.mark.parametrize(
        "name", ["libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libiomp5.so", "libopenblas.so.0"]
    )
    def test_library_that_shadows(self, name: str, machine: FakeMachine, tmp_path: Path) -> None:
        (tmp_path / name).touch()
        machine.variables["LD_LIBRARY_PATH"] = str(tmp_path)
        (finding,) = machine.examine(only="library-path")
        assert finding.severity == "warns"
        assert finding.what == f"LD_LIBRARY_PATH contains {name} in {tmp_path}"

    def test_one_finding_for_one_reason(self, machine: FakeMachine, tmp_path: Path) -> None:
        for name in ("libtorch.so", "libtorch_cpu.so", "libc10.so", "libgomp.so.1"):
            (tmp_path / name).touch()
        machine.variables["LD_LIBRARY_PATH"] = f"{tmp_path}:{tmp_path}"
        findings = machine.examine(only="library-path")
        assert [f.detail for f in findings] == [("libtorch_cpu.so", "libc10.so"), ()]

    def test_stubs(self, machine: FakeMachine) -> None:
        machine.variables["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
        (finding,) = machine.examine(only="library-path")
        assert "LIBRARY_PATH" in finding.fix

    def test_folders_that_are_meant(self, machine: FakeMachine, tmp_path: Path) -> None:
        recipe = Recipe(name="x", environment=EnvironmentTable(libraries=(str(tmp_path),)))
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libopenblas.so").touch()
        own = machine.folder / "build/prefix/lib"
        own.mkdir(parents=True)
        (own / "libopenblas.so").touch()
        machine.variables["LD_LIBRARY_PATH"] = f"{tmp_path}/lib:{own}:/usr/lib"
        assert machine.examine(plan=machine.plan(recipe), only="library-path") == ()

    def test_preload(self, machine: FakeMachine) -> None:
        machine.variables["LD_PRELOAD"] = "libjemalloc.so"
        assert severities(machine.examine(only="library-path")) == ["notes"]


class TestBlas:
    def torch(self, **options: Scalar) -> Recipe:
        table = EnvironmentTable(use="current")
        return Recipe(name="pytorch", version="2.6", environment=table, options=options)

    def test_requested_but_missing(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(self.torch(BLAS="OpenBLAS"), only="blas")
        assert finding.severity == "blocks"
        assert finding.fix == "apt-get install libopenblas-dev"

    def test_library_without_the_linkers_name_does_not_count(self, machine: FakeMachine) -> None:
        machine.file("usr/lib/x86_64-linux-gnu/libopenblas.so.0")
        assert severities(machine.examine(self.torch(BLAS="OpenBLAS"), only="blas")) == ["blocks"]

    @pytest.mark.parametrize(
        "place",
        [
            "usr/lib/x86_64-linux-gnu/libopenblas.so",
            "usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.a",
            "usr/local/lib/libopenblas.so",
            "opt/OpenBLAS/lib/libopenblas.so",
            "usr/lib64/libopenblas.so",
        ],
    )
    def test_places_of_the_system(self, place: str, machine: FakeMachine) -> None:
        machine.file(place)
        assert machine.examine(self.torch(BLAS="OpenBLAS"), only="blas") == ()

    @pytest.mark.parametrize("name", ["OpenBLAS_HOME", "CMAKE_PREFIX_PATH", "CONDA_PREFIX"])
    def test_places_that_are_named(self, name: str, machine: FakeMachine, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/libopenblas.so").touch()
        machine.variables[name] = str(tmp_path)
        assert machine.examine(self.torch(BLAS="OpenBLAS"), only="blas") == ()

    def test_built_by_the_stack(self, machine: FakeMachine) -> None:
        openblas = Recipe(name="openblas", version="0.3.29")
        assert machine.examine(openblas, self.torch(BLAS="OpenBLAS"), only="blas") == ()

    def test_none_at_all_falls_back(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(self.torch(), only="blas")
        assert (finding.severity, "Eigen" in finding.why) == ("warns", True)
        machine.file("usr/lib/x86_64-linux-gnu/libblas.so")
        assert machine.examine(self.torch(), only="blas") == ()

    def test_eigen_was_meant(self, machine: FakeMachine) -> None:
        assert machine.examine(self.torch(BLAS="Eigen"), only="blas") == ()

"""Headers and libraries that would be used: search order, libstdc++, LD_LIBRARY_PATH, BLAS."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import HIPCC_OUTPUT, FakeMachine, severities
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.doctor.search_paths import (
    compilers_library,
    glibcxx_of,
    header_flags,
    parse_search_list,
    read_search_list,
)
from torchyard.builds.recipe import (
    CondaTable,
    DebianRootTable,
    EnvironmentTable,
    PrepareCommand,
    Recipe,
    Scalar,
    VenvTable,
)


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


REAL = shutil.which("g++", path="/usr/bin:/bin")
needs_compiler = pytest.mark.skipif(REAL is None, reason="no g++ here")

CLANG_OUTPUT = """\
AMD clang version 18.0.0git
 "/opt/rocm/llvm/bin/clang-18" -cc1 -triple amdgcn-amd-amdhsa
ignoring nonexistent directory "/usr/lib/x86_64-conda/include"
ignoring duplicate directory "/opt/rocm/include"
  as it is a non-system directory that duplicates a system directory
#include "..." search starts here:
#include <...> search starts here:
 /device/only
End of search list.
 "/opt/rocm/llvm/bin/clang-18" -cc1 -triple x86_64-unknown-linux-gnu
#include "..." search starts here:
 /quoted
#include <...> search starts here:
 /env/include
 /usr/include
 /System/Library/Frameworks (framework directory)
 /opt/rocm/include
End of search list.
"""


def header(folder: Path, name: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(folder)


def hipcc(machine: FakeMachine, version: str = "6.2.41133") -> Path:
    """Like the real one: every -I in its order, then the system, and ROCm's own folder last."""
    rocm = machine.folder / "rocm"
    output = "; ".join(f"echo '{line}'" for line in HIPCC_OUTPUT.format(version).splitlines())
    machine.program(
        "hipcc",
        f'case "$*" in *--version*) {output}; exit 0 ;; esac\n'
        'echo "#include <...> search starts here:"\n'
        "IFS=:\n"
        'for word in "$@"; do case "$word" in\n'
        f"-I{rocm}/include) ;;\n"
        '-I*) echo " ${word#-I}" ;;\nesac; done\n'
        f'for word in $CPATH; do [ "$word" = {rocm}/include ] || echo " $word"; done\n'
        f'echo " {machine.folder}/system"\n'
        f'echo " {rocm}/include"\n'
        'echo "End of search list."',
        folder=rocm / "bin",
    )
    machine.variables["ROCM_PATH"] = str(rocm)
    for name in ("thrust/version.h", "hip/hip_runtime.h"):
        header(rocm / "include", name)
    return rocm


def rocm_recipe(**options: Scalar) -> Recipe:
    return Recipe(
        name="pytorch",
        version="2.6.0",
        environment=EnvironmentTable(use="current"),
        options={"USE_ROCM": True, "PYTORCH_ROCM_ARCH": "gfx90a", **options},
        prepare=(PrepareCommand(run=("python", "tools/amd_build/build_amd.py")),),
    )


class TestParsing:
    def test_list_of_the_host_pass(self) -> None:
        listed = parse_search_list("hipcc", CLANG_OUTPUT)
        assert listed is not None
        assert listed.folders == (
            "/quoted",
            "/env/include",
            "/usr/include",
            "/System/Library/Frameworks",
            "/opt/rocm/include",
        )
        assert listed.missing == ("/usr/lib/x86_64-conda/include",)

    def test_no_list(self) -> None:
        assert parse_search_list("cc", "error: no input files") is None
        assert parse_search_list("cc", "#include <...> search starts here:\n /cut off") is None

    def test_flags_in_both_spellings(self, machine: FakeMachine) -> None:
        machine.variables["CXXFLAGS"] = (
            "-O2 -I /a -I/b -isystem /c --gcc-install-dir=/gcc -DX='a b'"
        )
        machine.variables["CFLAGS"] = "-I/only/for/c"
        flags = header_flags(machine.context())
        assert flags == ("-I/a", "-I/b", "-isystem", "/c", "--gcc-install-dir=/gcc")
        del machine.variables["CXXFLAGS"]
        # PyTorch uses CFLAGS for C++ when CXXFLAGS is not set.
        assert header_flags(machine.context()) == ("-I/only/for/c",)


@needs_compiler
class TestRealCompiler:
    def notes(self, findings: tuple[DoctorFinding, ...]) -> tuple[str, ...]:
        (note,) = [f for f in findings if f.severity == "notes"]
        return note.detail

    def test_order_of_flags_variables_and_system(
        self, machine: FakeMachine, tmp_path: Path
    ) -> None:
        machine.real_tools = True
        for name in ("flag", "variable"):
            header(tmp_path / name, "thrust/version.h")
        machine.variables["CXXFLAGS"] = f"-I{tmp_path}/flag"
        machine.variables["CPATH"] = f"{tmp_path}/variable"
        assert REAL is not None
        listed = read_search_list(machine.context(), REAL, flags=(f"-I{tmp_path}/flag",))
        assert listed is not None
        assert listed.folders[:2] == (f"{tmp_path}/flag", f"{tmp_path}/variable")
        assert listed.folders[-1] == "/usr/include"
        lines = self.notes(machine.examine(only="include-order"))
        assert f"1. {tmp_path}/flag" in lines
        assert f"thrust/version.h: {tmp_path}/flag (also in {tmp_path}/variable)" in lines

    def test_the_header_that_is_reported_to_win_is_the_one_the_compiler_takes(
        self, machine: FakeMachine, tmp_path: Path
    ) -> None:
        machine.real_tools = True
        for name in ("one", "two"):
            folder = tmp_path / name
            header(folder, "cblas.h")
            (folder / "cblas.h").write_text(f'const char *winner = "{name}";\n', encoding="utf-8")
        machine.variables["CPATH"] = f"{tmp_path}/one:{tmp_path}/two"
        machine.variables["CXXFLAGS"] = f"-isystem {tmp_path}/two"
        assert REAL is not None
        context = machine.context()
        listed = read_search_list(context, REAL, flags=header_flags(context))
        assert listed is not None
        source = tmp_path / "probe.cpp"
        source.write_text("#include <cblas.h>\n", encoding="utf-8")
        output = context.run_program((REAL, "-E", *header_flags(context), str(source)))
        winner = Path(listed.owners("cblas.h")[0]).name
        assert f'"{winner}"' in output.text

    def test_own_omp_header_wins_silently(self, machine: FakeMachine) -> None:
        machine.real_tools = True
        findings = machine.examine(only="include-order")
        assert severities(findings) == ["notes"]

    def test_foreign_omp_header(self, machine: FakeMachine, tmp_path: Path) -> None:
        machine.real_tools = True
        machine.variables["CPATH"] = header(tmp_path, "omp.h")
        findings = machine.examine(only="include-order")
        assert findings[0].what == f"omp.h in {tmp_path} is used instead of the one of the compiler"
        machine.variables["CXXFLAGS"] = f"-idirafter {tmp_path}"
        del machine.variables["CPATH"]
        assert severities(machine.examine(only="include-order")) == ["notes"]

    def test_foreign_protobuf(self, machine: FakeMachine, tmp_path: Path) -> None:
        machine.real_tools = True
        machine.variables["CPATH"] = header(tmp_path, "google/protobuf/message.h")
        recipe = Recipe(name="pytorch", version="2.6", environment=EnvironmentTable(use="current"))
        findings = machine.examine(recipe, only="include-order")
        assert findings[0].what.startswith(f"protobuf in {tmp_path} is found before")
        system = Recipe(
            name="pytorch",
            version="2.6",
            environment=EnvironmentTable(use="current"),
            options={"USE_SYSTEM_LIBS": True},
        )
        assert severities(machine.examine(system, only="include-order")) == ["notes"]

    def test_headers_of_another_torch(self, machine: FakeMachine, tmp_path: Path) -> None:
        machine.real_tools = True
        machine.variables["CPATH"] = header(tmp_path, "torch/extension.h")
        findings = machine.examine(only="include-order")
        assert findings[0].what == f"{tmp_path} contains headers of another PyTorch"

    def test_folder_that_is_missing(self, machine: FakeMachine, tmp_path: Path) -> None:
        machine.real_tools = True
        machine.variables["CXXFLAGS"] = f"-I{tmp_path}/gone"
        findings = machine.examine(only="include-order")
        assert findings[0].what == f"header folders do not exist: {tmp_path}/gone"

    def test_folder_that_the_build_will_make(self, machine: FakeMachine) -> None:
        machine.real_tools = True
        machine.variables["CPATH"] = f"{machine.folder}/build/prefix/include"
        plan = machine.plan(Recipe(name="x", environment=EnvironmentTable(use="current")))
        assert severities(machine.examine(plan=plan, only="include-order")) == ["notes"]


class TestHipccTrap:
    def test_shadowed_headers_block(self, machine: FakeMachine) -> None:
        rocm = hipcc(machine)
        env = machine.folder / "env"
        header(env / "include", "thrust/version.h")
        machine.variables["CXXFLAGS"] = f"-I {rocm}/include -I {env}/include"
        findings = machine.examine(rocm_recipe(), only="include-order")
        (trap,) = [f for f in findings if f.severity == "blocks"]
        assert trap.what == (
            f"hipcc searches {rocm}/include after {env}/include, although it was requested first"
        )
        assert trap.detail == (
            f"thrust/version.h: {env}/include is used instead of {rocm}/include",
        )
        assert trap.fix.startswith(f"cp -rLT {rocm}/include {env}/rocm-include, and use -I{env}")

    def test_order_alone_warns(self, machine: FakeMachine) -> None:
        rocm = hipcc(machine)
        machine.variables["CPATH"] = f"{rocm}/include:{machine.folder}/env/include"
        findings = machine.examine(rocm_recipe(), only="include-order")
        assert severities(findings) == ["warns", "notes"]

    def test_the_copy_under_another_name_is_the_remedy(self, machine: FakeMachine) -> None:
        rocm = hipcc(machine)
        env = machine.folder / "env"
        header(env / "include", "thrust/version.h")
        shutil.copytree(rocm / "include", env / "rocm-include")
        machine.variables["CXXFLAGS"] = f"-I{env}/rocm-include -I{env}/include"
        findings = machine.examine(rocm_recipe(), only="include-order")
        (note,) = findings
        assert f"thrust/version.h: {env}/rocm-include" in "\n".join(note.detail)

    def test_folder_through_a_link_is_the_same(self, machine: FakeMachine) -> None:
        rocm = hipcc(machine)
        link = machine.folder / "rocm-6.2"
        link.symlink_to(rocm)
        env = machine.folder / "env"
        header(env / "include", "thrust/version.h")
        machine.variables["ROCM_PATH"] = str(link)
        machine.variables["CPATH"] = f"{rocm}/include:{env}/include"
        findings = machine.examine(rocm_recipe(), only="include-order")
        assert severities(findings)[0] == "blocks"

    def test_hipcc_that_says_nothing(self, machine: FakeMachine) -> None:
        machine.says("hipcc", HIPCC_OUTPUT.format("6.2.0"))
        (finding,) = machine.examine(rocm_recipe(), only="include-order")
        assert finding.what.startswith("the header search list of ")


class TestRocm:
    def test_rocm_is_missing(self, machine: FakeMachine) -> None:
        machine.variables["ROCM_PATH"] = str(machine.folder / "none")
        (finding,) = machine.examine(rocm_recipe(), only="rocm")
        assert (finding.severity, "hipcc was not found" in finding.what) == ("blocks", True)

    def test_a_debian_root_uses_the_rocm_of_the_machine_or_its_own(
        self, machine: FakeMachine
    ) -> None:
        recipe = replace(rocm_recipe(), environment=EnvironmentTable(use="debian-root"))
        machine.variables["ROCM_PATH"] = str(machine.folder / "none")
        assert severities(machine.examine(recipe, only="rocm")) == ["blocks"]
        own = DebianRootTable(packages=("hipcc", "libmiopen-dev"))
        table = EnvironmentTable(use="debian-root", debian_root=own)
        assert machine.examine(replace(recipe, environment=table), only="rocm") == ()

    def test_notes_follow_the_version(self, machine: FakeMachine) -> None:
        hipcc(machine)
        old = machine.examine(rocm_recipe(), only="rocm")
        assert any("HIP_CLANG_LAUNCHER" in f.what for f in old)
        hipcc(machine, "7.13.1")
        new = machine.examine(rocm_recipe(), only="rocm")
        assert not any("HIP_CLANG_LAUNCHER" in f.what for f in new)
        assert set(severities((*old, *new))) == {"notes"}

    def test_recipe_that_omits_the_conversion(self, machine: FakeMachine) -> None:
        hipcc(machine)
        recipe = Recipe(
            name="pytorch",
            version="2.6",
            environment=EnvironmentTable(use="current"),
            options={"USE_ROCM": True},
        )
        findings = machine.examine(recipe, only="rocm")
        assert [f.severity for f in findings][:2] == ["blocks", "warns"]
        assert "build_amd.py" in findings[0].why
        assert "PYTORCH_ROCM_ARCH" in findings[1].what

    def test_wrong_platform(self, machine: FakeMachine) -> None:
        hipcc(machine)
        machine.variables["HIP_PLATFORM"] = "nvidia"
        findings = machine.examine(rocm_recipe(), only="rocm")
        assert findings[0].fix == "export HIP_PLATFORM=amd"

    def test_folder_that_is_missing(self, machine: FakeMachine) -> None:
        machine.says("hipcc", HIPCC_OUTPUT.format("6.2.0"))
        machine.variables["ROCM_PATH"] = str(machine.folder / "none")
        findings = machine.examine(rocm_recipe(), only="rocm")
        assert findings[0].what.endswith("is not a folder")


def test_a_conda_environment_without_blas(machine: FakeMachine) -> None:
    def findings(*packages: str, pip: tuple[str, ...] = ()) -> list[str]:
        table = EnvironmentTable(
            use="conda", conda=CondaTable(packages=packages), venv=VenvTable(packages=pip)
        )
        recipe = Recipe(
            name="pytorch", known_release="pytorch", version="2.13.0", environment=table
        )
        return [finding.what for finding in machine.examine(recipe, only="blas")]

    assert findings("cmake") == ["the conda environment has no BLAS"]
    assert findings("cmake", "openblas") == findings("cmake", pip=("mkl-static",)) == []

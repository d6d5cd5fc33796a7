"""The meter in real builds: built by its actions, enabled by variables, resumed after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.builds.meter.metered_commands import MeteredCommands, open_metered_commands, wait_for
from torchyard.builds.meter.compile_costs import read_meter_log, remove_unfinished
from torchyard.builds.meter.compiler_launcher import (
    DEFAULT_PATH,
    UNIT_MIB,
    CacheChoice,
    meter_actions,
    meter_variables,
    step_variables,
    write_table,
)
from torchyard.builds.plan import Command, WriteFile

CACHE = CacheChoice(name="ccache", program="/usr/bin/ccache", variables={"CCACHE_BASEDIR": "/b"})


def perform(folder: Path, variables: Mapping[str, str]) -> None:
    """Do the actions as the runner does them."""
    for action in meter_actions(folder):
        if isinstance(action, WriteFile):
            Path(action.path).parent.mkdir(parents=True, exist_ok=True)
            Path(action.path).write_text(action.text)
        else:
            assert isinstance(action, Command)
            subprocess.run(
                action.argv, cwd=action.folder, env=dict(variables), check=True, timeout=120
            )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("yard with space") / "meter"
    perform(folder, os.environ)
    return folder


def clean_environment() -> dict[str, str]:
    unwanted = ("CMAKE_", "TORCHYARD", "CC", "CXX", "MAKE", "NINJA")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def test_the_actions_make_a_meter_and_links(made: Path) -> None:
    names = {path.name for path in (made / "bin").iterdir()}
    assert "cc" in names
    assert all((made / "bin" / name).resolve() == made / "meter" for name in names)
    for name in ("clang", "nvcc", "hipcc", "g++", "gfortran"):
        assert (name in names) == (shutil.which(name) is not None), "only what the machine has"


def test_making_it_twice_changes_nothing(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "meter"
    perform(folder, os.environ)
    first = sorted(path.name for path in folder.rglob("*"))
    perform(folder, os.environ)
    assert sorted(path.name for path in folder.rglob("*")) == first


def test_without_a_compiler_the_build_goes_on_unmeasured(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "mv", "rm", "mkdir", "chmod", "ln"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/" + name)
    perform(tmp_path / "meter", {"PATH": str(tools)})
    result = subprocess.run(
        [tmp_path / "meter" / "meter", "echo", "a  b"],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert result.stdout == "a  b\n"
    assert list((tmp_path / "meter" / "bin").iterdir()) == []


def test_cmake_gets_launchers_and_no_path(tmp_path: Path) -> None:
    variables = meter_variables(tmp_path, jobs=3, memory_mib=6500, masquerade=False, cache=CACHE)
    meter = str(tmp_path / "meter")
    for language in ("C", "CXX", "CUDA", "HIP", "Fortran"):
        assert variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] == meter
    assert variables["CMAKE_CXX_LINKER_LAUNCHER"] == meter
    assert "PATH" not in variables
    assert variables["TORCHYARD_METER_CACHE"] == "/usr/bin/ccache", "chosen anew at each run"
    assert variables["TORCHYARD_METER_UNITS"] == str(6500 // UNIT_MIB)
    assert variables["TORCHYARD_METER_JOBS"] == "3"
    assert variables["CCACHE_BASEDIR"] == "/b"


def test_other_projects_get_a_path_and_no_launchers(tmp_path: Path) -> None:
    variables = meter_variables(
        tmp_path, jobs=0, memory_mib=0, masquerade=True, cache=CACHE, path="/x:/y"
    )
    assert variables["PATH"] == f"{tmp_path}/bin:/x:/y"
    assert variables["TORCHYARD_METER_CACHE"] == "/usr/bin/ccache"
    assert not any("LAUNCHER" in name for name in variables)
    assert (variables["TORCHYARD_METER_JOBS"], variables["TORCHYARD_METER_UNITS"]) == ("1", "1")
    bare = meter_variables(tmp_path, jobs=1, memory_mib=1, masquerade=True, cache=None, path="")
    assert bare["PATH"] == f"{tmp_path}/bin:{DEFAULT_PATH}", "an empty entry would mean this folder"


@pytest.mark.parametrize("generator", ["Ninja", "Unix Makefiles"])
def test_a_real_cmake_build_is_measured_whole(made: Path, tmp_path: Path, generator: str) -> None:
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("needs cmake and a C++ compiler")
    if generator == "Ninja" and shutil.which("ninja") is None:
        pytest.skip("needs ninja")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.17)\nproject(p C CXX)\n"
        "add_library(one SHARED a.c b.cpp)\nadd_executable(two main.c)\n"
        "target_link_libraries(two one)\n"
    )
    (tmp_path / "a.c").write_text("int a(void) { return 0; }\n")
    (tmp_path / "b.cpp").write_text('extern "C" int b() { return 0; }\n')
    (tmp_path / "main.c").write_text("int a(void);\nint main(void) { return a(); }\n")
    log = tmp_path / "log"
    table = tmp_path / "table"
    write_table(table, {"b.cpp.o": 333})
    variables = {
        **clean_environment(),
        **meter_variables(made, jobs=2, memory_mib=2000, masquerade=False, cache=None),
        **step_variables(log=log, table=table),
    }
    build = tmp_path / "build"
    for argv in (
        ["cmake", "-G", generator, "-S", str(tmp_path), "-B", str(build)],
        ["cmake", "--build", str(build), "-j2"],
    ):
        subprocess.run(argv, env=variables, check=True, timeout=120, stdout=subprocess.DEVNULL)
    compiles = {one.name: one for one in read_meter_log(log).compiles}
    assert {"a.c.o", "b.cpp.o", "main.c.o", "libone.so", "two"} <= compiles.keys()
    assert compiles["b.cpp.o"].expected_mib == 333
    assert compiles["libone.so"].kind == "link"
    assert Path(compiles["a.c.o"].output).is_file()
    assert subprocess.run([build / "two"], check=False, timeout=10).returncode == 0


def test_a_plain_makefile_is_measured_by_name(made: Path, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (tmp_path / "Makefile").write_text("all: a.o b.o\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.c").write_text("int x;\n")
    variables = {
        **clean_environment(),
        **meter_variables(
            made, jobs=2, memory_mib=2000, masquerade=True, cache=None, path=os.environ["PATH"]
        ),
        **step_variables(log=tmp_path / "log", table=tmp_path / "table"),
    }
    subprocess.run(["make", "-j2"], cwd=tmp_path, env=variables, check=True, timeout=60)
    assert {one.name for one in read_meter_log(tmp_path / "log").compiles} == {"a.o", "b.o"}


# --- resume -------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[MeteredCommands]:
    yield from open_metered_commands(tmp_path_factory, tmp_path)


HALF = """
output = sys.argv[sys.argv.index('-o') + 1]
open(output, 'w').write('half')
if os.path.exists('slow'): time.sleep(60)
open(output, 'w').write('whole')
"""


def test_an_incomplete_object_is_not_taken_as_finished_after_kill_9(bench: MeteredCommands) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    compiler = bench.fake_compiler(HALF)
    (bench.folder / "Makefile").write_text(
        f"all: a.o b.o\n%.o: %.c\n\t{bench.meter} {compiler} -c $< -o $@\n"
    )
    for name in ("a.c", "b.c", "slow"):
        (bench.folder / name).write_text("")
    make = subprocess.Popen(
        ["make", "-j2"],
        cwd=bench.folder,
        env=bench.variables,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    objects = [bench.folder / "a.o", bench.folder / "b.o"]
    wait_for(lambda: all(path.exists() and path.read_text() == "half" for path in objects))
    os.killpg(make.pid, signal.SIGKILL)
    make.wait(timeout=20)
    (bench.folder / "slow").unlink()

    def resume() -> list[str]:
        subprocess.run(
            ["make"],
            cwd=bench.folder,
            env=bench.variables,
            check=True,
            timeout=30,
            stdout=subprocess.DEVNULL,
        )
        return [path.read_text() for path in objects]

    assert resume() == ["half", "half"], "make believes in files that are there"
    log = bench.log
    assert set(log.unfinished) == {str(path) for path in objects}
    assert set(remove_unfinished(log, below=bench.folder)) == set(objects)
    assert resume() == ["whole", "whole"]
    assert bench.log.unfinished == ()
    assert remove_unfinished(bench.log) == ()

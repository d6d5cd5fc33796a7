"""A second library from the compiled files of a real build, which stays as it is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import needs_cmake, needs_gcc
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.record import BuildRecord, ComponentRecord, RecipeIdentity, write_record
from torchyard.core.study import Target
from torchyard.errors import StepFailed, UsageError
from torchyard.values.torch_patches.patched_build import PatchedBuild

pytestmark = [pytest.mark.timeout(600), needs_cmake, needs_gcc]

NATIVE = "aten/src/ATen/native"
CMAKE = f"""
cmake_minimum_required(VERSION 3.18)
project(small CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/lib)
add_library(base SHARED {NATIVE}/Base.cpp)
add_library(torch_cpu SHARED {NATIVE}/F.cpp {NATIVE}/G.cpp)
target_link_libraries(torch_cpu PRIVATE base)
"""
SOURCES = {
    "Base.cpp": "int base() { return 100; }\n",
    "F.cpp": '#include "near.h"\nint base();\nextern "C" int f() { return base() + NEAR; }\n',
    "G.cpp": 'extern "C" int g() { return 7; }\n',
    "near.h": "#define NEAR 1\n",
}
PACKAGE = """
import ctypes, pathlib
library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_cpu.so"))
"""
VALUES = "import torch; print(torch.library.f(), torch.library.g())"


@pytest.fixture
def home(tmp_path: Path) -> BuildsDirectory:
    """Return builds with one that was made by CMake and Ninja, as a build of PyTorch is."""
    home = BuildsDirectory(folder=tmp_path / "home")
    folder = home.builds / "small"
    tree = folder / "trees" / "pytorch"
    (tree / NATIVE).mkdir(parents=True)
    (tree / "CMakeLists.txt").write_text(CMAKE)
    for name, text in SOURCES.items():
        (tree / NATIVE / name).write_text(text)
    for command in (["cmake", "-G", "Ninja", "-S", ".", "-B", "build"], ["ninja", "-C", "build"]):
        subprocess.run(command, cwd=tree, check=True, capture_output=True)
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    libraries = site / "torch" / "lib"
    libraries.mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(PACKAGE)
    for name in ("libbase.so", "libtorch_cpu.so"):
        shutil.copy2(tree / "build" / "lib" / name, libraries / name)
    step = {"name": "pytorch/build", "variables": [["PATH", os.environ["PATH"]]]}
    (folder / "plan.json").write_text(json.dumps({"steps": [step]}))
    record = BuildRecord(
        name="small",
        recipe=RecipeIdentity(name="pytorch"),
        components=(ComponentRecord(name="pytorch"),),
        python=str(environment / "bin" / "python"),
    )
    write_record(folder, record)
    return home


def values(target: Target) -> list[int]:
    output = subprocess.run(
        [target.python, "-c", VALUES], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    return [int(word) for word in output.split()]


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def patched(build: PatchedBuild, text: str, name: str = "F.cpp") -> Target:
    sources = {f"{NATIVE}/{name}": text}
    return build.build(sources, build.patches_folder / "first", say=lambda _: None)


def test_patched_library_beside_the_unchanged_build(home: BuildsDirectory) -> None:
    before = {part: contents(home.builds / "small" / part) for part in ("trees", "env")}
    build = PatchedBuild("small", home=home)
    target = patched(build, SOURCES["F.cpp"].replace("+ NEAR", "+ NEAR + 1000"))
    assert values(build.target) == [101, 7]
    assert values(target) == [1101, 7]
    after = {part: contents(home.builds / "small" / part) for part in ("trees", "env")}
    assert after == before


def test_the_package_has_its_own_libraries(home: BuildsDirectory) -> None:
    build = PatchedBuild("small", home=home)
    target = patched(build, SOURCES["F.cpp"].replace("+ NEAR", "+ 5"))
    shutil.rmtree(build.tree / "build" / "lib")  # a library must not be loaded from there
    assert values(target) == [105, 7]


def test_a_file_is_compiled_once(home: BuildsDirectory) -> None:
    build = PatchedBuild("small", home=home)
    text = SOURCES["F.cpp"].replace("+ NEAR", "+ 2")
    patched(build, text)
    made = build.patches_folder / "first" / "objects" / f"{NATIVE}/F.cpp.o"
    before = made.stat().st_mtime_ns
    patched(build, text)
    assert made.stat().st_mtime_ns == before
    assert values(patched(build, text.replace("+ 2", "+ 3"))) == [103, 7]


def test_an_error_of_the_compiler_is_shown(home: BuildsDirectory) -> None:
    build = PatchedBuild("small", home=home)
    with pytest.raises(StepFailed) as raised:
        patched(build, "int f( { return missing; }")
    assert "F.cpp: the command ended with 1" in raised.value.what
    assert "error:" in raised.value.why
    assert Path(raised.value.log).is_file()


def test_a_file_that_the_build_does_not_compile(home: BuildsDirectory) -> None:
    build = PatchedBuild("small", home=home)
    with pytest.raises(StepFailed, match="not compiled by this build"):
        patched(build, "", name="near.h")


def test_files_of_two_libraries_are_refused(home: BuildsDirectory) -> None:
    build = PatchedBuild("small", home=home)
    sources = {f"{NATIVE}/{name}": SOURCES[name] for name in ("F.cpp", "Base.cpp")}
    with pytest.raises(StepFailed, match="into 2 libraries"):
        build.build(sources, build.patches_folder / "first", say=lambda _: None)


def test_a_build_without_its_compiled_files_is_refused(home: BuildsDirectory) -> None:
    shutil.rmtree(home.builds / "small" / "trees" / "pytorch" / "build")
    with pytest.raises(UsageError, match=r"compile_commands\.json does not exist"):
        PatchedBuild("small", home=home)
    shutil.rmtree(home.builds / "small" / "trees")
    with pytest.raises(UsageError, match="no source tree of PyTorch"):
        PatchedBuild("small", home=home)

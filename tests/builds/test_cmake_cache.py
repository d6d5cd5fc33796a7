from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import needs_cmake
from torchyard.builds.cmake_cache import cmake_bool, find_cache, parse_cache, read_cache, same_value

PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(part NONE)
option(USE_FAST "Be fast" OFF)
option(USE_CUDA "Use a device" ON)
set(BLAS "Eigen" CACHE STRING "Selected BLAS library")
set(PADDED "x " CACHE STRING "Ends with a blank")
set(DATA_DIR "/usr/share" CACHE PATH "Where data is")
set(LONG "x" CACHE STRING "A text that is so long that CMake has to break the comment before it \
into several lines, which it does at about eighty letters per line in this file")
if(USE_CUDA)
  set(USE_CUDA OFF CACHE BOOL "Use a device" FORCE)
endif()
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    (folder / "CMakeLists.txt").write_text(PROJECT)
    command = ["cmake", "-G", "Ninja", "-S", str(folder), "-B", str(folder / "build/deep")]
    command += ["-DUSE_FAST=1", "-DUSE_CUDA=ON", "-DNOBODY=5", "-DTYPED:BOOL=ON"]
    command += ["-DWITH:COLON:STRING=a=b"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@needs_cmake
def test_a_real_cache_is_read_with_types_and_help(tree: Path) -> None:
    cache = read_cache(tree / "build/deep/CMakeCache.txt")
    assert cache["USE_FAST"].kind == "BOOL"
    assert cache["USE_FAST"].value == "1"
    assert cache["USE_FAST"].help == "Be fast"
    assert cache["DATA_DIR"].kind == "PATH"
    assert cache["USE_CUDA"].value == "OFF", "the project changed it"
    assert cache["PADDED"].value == "x ", "the quotes around a last blank are CMake's"
    assert cache["CMAKE_HOME_DIRECTORY"].value == str(tree)
    assert cache["LONG"].help.startswith("A text that is so long")
    assert cache["LONG"].help.endswith("letters per line in this file")
    assert cache["CMAKE_HOME_DIRECTORY"].kind == "INTERNAL"


@needs_cmake
def test_what_only_the_command_line_knows_is_not_declared(tree: Path) -> None:
    cache = read_cache(tree / "build/deep/CMakeCache.txt")
    assert not cache["NOBODY"].declared
    assert cache["NOBODY"].kind == "UNINITIALIZED"
    assert not cache["TYPED"].declared, "a type on the command line declares nothing"
    assert cache["USE_FAST"].declared
    assert cache["BLAS"].declared


@needs_cmake
def test_the_cache_is_found_where_the_backend_put_it(tree: Path) -> None:
    found = find_cache(tree, project=tree, likely="build")
    assert found == tree / "build/deep/CMakeCache.txt"


@needs_cmake
def test_a_nested_project_s_cache_is_not_taken(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    text = (tree / "build/deep/CMakeCache.txt").read_text()
    (tmp_path / "build/CMakeCache.txt").write_text(text)
    assert find_cache(tmp_path, project=tmp_path, likely="build") is None
    own = text.replace(
        f"CMAKE_HOME_DIRECTORY:INTERNAL={tree}", f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}"
    )
    (tmp_path / "build/inner").mkdir()
    (tmp_path / "build/inner/CMakeCache.txt").write_text(own)
    assert (
        find_cache(tmp_path, project=tmp_path, likely="build")
        == tmp_path / "build/inner/CMakeCache.txt"
    )


def test_no_cache_is_not_an_error(tmp_path: Path) -> None:
    assert find_cache(tmp_path, project=tmp_path, likely="build") is None
    assert find_cache(tmp_path / "missing", project=tmp_path, likely="") is None


def test_odd_lines() -> None:
    text = '# comment\n//help\n\nA:BOOL=ON\n"B:C":STRING=x=y\nD:STRING=\nnonsense\n// lost\nE-ADVANCED:INTERNAL=1\n'
    cache = parse_cache(text)
    assert {name: entry.value for name, entry in cache.items()} == {
        "A": "ON",
        "B:C": "x=y",
        "D": "",
        "E-ADVANCED": "1",
    }
    assert cache["A"].help == "", "a blank line ends a comment"
    assert cache["E-ADVANCED"].help == " lost"


@pytest.mark.parametrize("value", ["ON", "on", "1", "TRUE", "Yes", "y"])
def test_true(value: str) -> None:
    assert cmake_bool(value) is True


@pytest.mark.parametrize(
    "value", ["OFF", "0", "no", "False", "N", "", "IGNORE", "NOTFOUND", "MKL_LIB-NOTFOUND"]
)
def test_false(value: str) -> None:
    assert cmake_bool(value) is False


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("ON", "1", True),
        ("YES", "TRUE", True),
        ("OFF", "0", True),
        ("ON", "OFF", False),
        ("1", "0", False),
        ("OpenBLAS", "openblas", True),
        ("OpenBLAS", "MKL", False),
        ("OpenBLAS", "ON", False),
        ("8.0;9.0", "8.0 9.0", True),
        ("8.0;9.0", "9.0;8.0", False),
        ("/opt/acl/", "/opt/acl", True),
        ("Release", "RELEASE", True),
        ("12", "13", False),
    ],
)
def test_values_that_mean_the_same(left: str, right: str, same: bool) -> None:
    assert same_value(left, right) is same
    assert same_value(right, left) is same

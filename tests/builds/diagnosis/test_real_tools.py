"""Diagnosis of real failures of compilers, linkers, CMake, ninja, make, git and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.model import Diagnosis

BROKEN = "int f() {\n  int a = 1\n  return a;\n}\n"


def run(folder: Path, *argv: str, **variables: str) -> Diagnosis:
    """The diagnosis of a command that must fail, from its real output."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(
        argv,
        cwd=folder,
        env=os.environ | {"LC_ALL": "C.UTF-8"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode != 0, done.stdout.decode()
    log = folder / "step.log"
    log.write_bytes(done.stdout)
    return diagnose(log, exit_code=done.returncode)


def project(folder: Path, cmake: str, **sources: str) -> None:
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18)\nproject(p C CXX)\n{cmake}\n", encoding="utf-8"
    )
    for name, text in sources.items():
        (folder / name.replace("_", ".", 1)).write_text(text, encoding="utf-8")


def configured(folder: Path, generator: str = "Ninja") -> None:
    for tool in ("cmake", "c++", "ninja" if generator == "Ninja" else "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    subprocess.run(
        ["cmake", "-G", generator, "-S", ".", "-B", "out"],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def root_id(found: Diagnosis) -> str:
    assert found.root is not None, found.first_error
    return found.root.id


@pytest.mark.parametrize("generator", ["Ninja", "Unix Makefiles"])
def test_a_syntax_error_in_a_parallel_build(tmp_path: Path, generator: str) -> None:
    good = "int g() { int unused; return 0; }\n"
    project(
        tmp_path,
        "add_compile_options(-Wall -Werror=return-type)\n"
        "add_library(p STATIC a.cpp error.cpp c.cpp)",
        a_cpp=good,
        error_cpp=BROKEN,
        c_cpp=good.replace("g()", "h()"),
    )
    configured(tmp_path, generator)
    found = run(tmp_path, "cmake", "--build", "out", "-j2")
    # GCC also reports the missing `return` behind it, as an error because of the flag.
    assert found.root is None, found.root
    assert found.first_error is not None
    assert "error.cpp:3:3: error: expected" in found.first_error.text
    assert found.failed_command is not None
    assert found.failed_command.target.endswith("error.cpp.o")


def test_colours_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text(BROKEN, encoding="utf-8")
    plain = run(tmp_path, "c++", "-c", "x.cpp")
    coloured = run(tmp_path, "c++", "-fdiagnostics-color=always", "-c", "x.cpp")
    assert b"\x1b[" in (tmp_path / "step.log").read_bytes()
    assert plain.first_error == coloured.first_error
    assert plain.first_error is not None


def test_a_library_that_is_missing(tmp_path: Path) -> None:
    project(
        tmp_path,
        "add_executable(p m.c)\ntarget_link_libraries(p no_such_library)",
        m_c="int main(void) { return 0; }\n",
    )
    configured(tmp_path)
    found = run(tmp_path, "cmake", "--build", "out")
    assert root_id(found) == "library-not-found"
    assert found.causes[0].values == {"library": "no_such_library"}


def test_a_symbol_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m.c").write_text("int f(void); int main(void) { return f(); }\n", encoding="utf-8")
    found = run(tmp_path, "cc", "m.c", "-o", "m")
    assert root_id(found) == "undefined-reference"
    assert found.first_error is not None
    assert found.first_error.tool == "linker"


def test_a_newer_cmake_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 99.1)\nproject(p NONE)\n", encoding="utf-8"
    )
    found = run(tmp_path, "cmake", "-S", ".", "-B", "out")
    assert root_id(found) == "cmake-too-old"
    assert found.causes[0].values["needed"] == "99.1"


def test_a_long_message_of_cmake_with_checks_before_it(tmp_path: Path) -> None:
    words = "this is a very long message that CMake wraps over many lines " * 4
    project(
        tmp_path,
        'include(CheckCSourceCompiles)\ncheck_c_source_compiles("int main(void) { return x; }" OK)\n'
        f'message(FATAL_ERROR "{words}")',
    )
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    found = run(tmp_path, "cmake", "-S", ".", "-B", "out")
    assert found.causes == ()
    assert found.first_error is not None
    assert found.first_error.tool == "cmake"
    assert words.strip() in found.first_error.text


def test_a_configured_folder_that_was_moved(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    project(before, "")
    configured(before)
    after = tmp_path / "after"
    before.rename(after)
    assert root_id(run(after, "cmake", "-S", ".", "-B", "out")) == "stale-cmake-cache"


def test_a_full_disk(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    (tmp_path / "x.c").write_text("int x[] = {1};\n", encoding="utf-8")
    found = run(tmp_path, "sh", "-c", "cc -S x.c -o /dev/full")
    assert root_id(found) == "disk-full"


def test_a_compiler_without_memory(tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text("#include <regex>\n#include <map>\nint x;\n", encoding="utf-8")
    if shutil.which("c++") is None:
        pytest.skip("c++ is not installed")
    found = run(tmp_path, "sh", "-c", "ulimit -v 70000; c++ -O2 -c x.cpp")
    assert root_id(found) in {"compiler-out-of-memory", "internal-compiler-error"}


def test_ninja_without_a_file_and_with_a_source_gone(tmp_path: Path) -> None:
    assert root_id(run(tmp_path, "ninja")) == "ninja-file-missing"
    (tmp_path / "build.ninja").write_text(
        "rule cc\n  command = cc -c $in\nbuild x.o: cc x.c\n", encoding="utf-8"
    )
    assert root_id(run(tmp_path, "ninja")) == "source-file-gone"


def test_git_and_a_revision_that_is_missing(tmp_path: Path) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", "r"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", *identity, "commit", "-q", "--allow-empty", "-m", "m"],
        cwd=tmp_path / "r",
        check=True,
    )
    assert root_id(run(tmp_path, "git", "clone", "-b", "v9", "r", "c")) == "git-ref-missing"


def test_python_without_a_module_and_without_setup_py(tmp_path: Path) -> None:
    found = run(tmp_path, sys.executable, "-c", "import no_such_module_here")
    assert root_id(found) == "python-module-missing"
    assert found.causes[0].values == {"module": "no_such_module_here"}
    assert root_id(run(tmp_path, sys.executable, "setup.py", "develop")) == "setup-py-missing"


def test_pip_and_a_requirement_that_no_index_has(tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "pip", "download", "--no-index", "no-such-distribution==9.9")
    found = run(tmp_path, *argv, PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS="")
    assert root_id(found) == "pip-no-distribution"


@pytest.mark.torch
def test_an_extension_of_torch_with_a_syntax_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "ext.cpp").write_text(BROKEN, encoding="utf-8")
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\n"
        "from torch.utils.cpp_extension import BuildExtension, CppExtension\n"
        'setup(name="ext", ext_modules=[CppExtension("ext", ["ext.cpp"])],\n'
        '      cmdclass={"build_ext": BuildExtension})\n',
        encoding="utf-8",
    )
    found = run(tmp_path, sys.executable, "setup.py", "build_ext", "--inplace", MAX_JOBS="1")
    assert found.root is None
    assert found.first_error is not None
    assert "ext.cpp:3:3: error: expected" in found.first_error.text
    assert found.first_error.tool == "compiler"

"""Small real projects, written into a folder: C and C++ with CMake or make, Python with C."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Put files into a folder, and return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# --- CMake ---------------------------------------------------------------------------------------

_LIBRARY = """\
cmake_minimum_required(VERSION 3.18)
project({name} {language})
option(LOUD "answer louder" OFF)
add_library({name} SHARED {sources})
if(LOUD)
  target_compile_definitions({name} PRIVATE LOUD=1)
endif()
install(TARGETS {name} LIBRARY DESTINATION lib)
install(FILES {name}.h DESTINATION include)
"""


def library(folder: Path, name: str = "tiny") -> Path:
    """A shared C library of two files: NAME_one() is 1 and NAME_two() 2, or 200 with LOUD."""
    return write(
        folder,
        {
            "CMakeLists.txt": _LIBRARY.format(name=name, language="C", sources="one.c two.c"),
            f"{name}.h": f"int {name}_one(void);\nint {name}_two(void);\n",
            "one.c": f'#include "{name}.h"\nint {name}_one(void) {{ return 1; }}\n',
            "two.c": (
                f'#include "{name}.h"\n#ifdef LOUD\n#define FACTOR 100\n#else\n#define FACTOR 1\n'
                f"#endif\nint {name}_two(void) {{ return 2 * FACTOR; }}\n"
            ),
        },
    )


def broken_library(folder: Path) -> Path:
    """The library with a mistake in one of its files."""
    library(folder)
    return write(folder, {"two.c": "int tiny_two(void) { return undeclared_number; }\n"})


def gated_library(folder: Path, gate: Path, *, parts: int = 8) -> Path:
    """A C++ library whose `part3.cpp` includes the gate; a gate that is a FIFO holds its compiler.

    The compiler proper then waits in the middle of its work, for as long as the test wants it to,
    and costs nothing.
    """
    files = {
        f"part{number}.cpp": (
            "#include <vector>\n"
            + (f'#include "{gate}"\n' if number == 3 else "")
            + f'extern "C" int part{number}() {{ return std::vector<int>({number}, 1).size(); }}\n'
        )
        for number in range(parts)
    }
    total = " + ".join(f"part{number}()" for number in range(parts))
    names = "".join(f"int part{number}(); " for number in range(parts))
    files["total.cpp"] = f'extern "C" {{ {names}int total() {{ return {total}; }} }}\n'
    sources = " ".join(sorted(files))
    cmake = _LIBRARY.format(name="gated", language="CXX", sources=sources)
    return write(folder, {**files, "CMakeLists.txt": cmake, "gated.h": 'extern "C" int total();\n'})


# --- Python --------------------------------------------------------------------------------------

ERAS = ("setup.py", "setuptools", "scikit-build-core")
"""The front ends that PyTorch had, from its first release to the newest."""

_EXTENSION = """\
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *nothing) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "", -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
"""
_SETUP = """\
from setuptools import Extension, setup

setup(
    name="NAME",
    version="1.5",
    packages=["NAME"],
    ext_modules=[Extension("NAME._native", ["NAME/_native.c"])],
)
"""
_SETUPTOOLS_TOML = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""
_SCIKIT_BUILD = """\
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"

[project]
name = "NAME"
version = "1.5"

[tool.scikit-build]
wheel.packages = ["NAME"]
build-dir = "build"
"""
_SCIKIT_CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(NAME LANGUAGES C)
option(SPICY "more of it" OFF)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
python_add_library(_native MODULE WITH_SOABI NAME/_native.c)
if(SPICY)
  target_compile_definitions(_native PRIVATE SPICY=1)
endif()
install(TARGETS _native DESTINATION NAME)
"""
_TESTS = """\
import NAME


def test_good():
    assert NAME.answer() == 42


def test_known():
    assert NAME.answer() == 41, "nobody fixed this yet"


def test_new():
    assert NAME.answer() == 43


def test_outside_the_source():
    assert "trees" not in NAME.__file__
"""


def python_project(folder: Path, era: str, name: str = "spam") -> Path:
    """A package with a C extension, whose `answer()` is 42, and a file of tests."""
    files = {
        "NAME/__init__.py": "from NAME._native import answer\n\n__version__ = '1.5'\n",
        "NAME/_native.c": _EXTENSION,
        "checks/check_NAME.py": _TESTS,
    }
    if era == "scikit-build-core":
        files |= {"pyproject.toml": _SCIKIT_BUILD, "CMakeLists.txt": _SCIKIT_CMAKE}
    else:
        files["setup.py"] = _SETUP
    if era == "setuptools":
        files["pyproject.toml"] = _SETUPTOOLS_TOML
    return write(
        folder,
        {key.replace("NAME", name): text.replace("NAME", name) for key, text in files.items()},
    )


_TORCH_SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="twice",
    version="0.3",
    packages=["twice"],
    ext_modules=[
        CppExtension("twice._C", ["twice/twice.cpp"], extra_compile_args=["-O0", "-g0"])
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
_TORCH_OPERATOR = """\
#include <ATen/core/Tensor.h>
#include <torch/library.h>

static at::Tensor twice(const at::Tensor& input) { return input.add(input); }

TORCH_LIBRARY(yard_twice, library) {
  library.def("twice(Tensor input) -> Tensor", &twice);
}
"""
_TORCH_PACKAGE = """\
import importlib.util
import torch

__version__ = "0.3"
torch.ops.load_library(importlib.util.find_spec("twice._C").origin)


def twice(tensor):
    return torch.ops.yard_twice.twice(tensor)
"""


def torch_extension(folder: Path) -> Path:
    """A package `twice` with one operator in C++, compiled against torch."""
    return write(
        folder,
        {
            "setup.py": _TORCH_SETUP,
            "twice/twice.cpp": _TORCH_OPERATOR,
            "twice/__init__.py": _TORCH_PACKAGE,
        },
    )


# --- git -----------------------------------------------------------------------------------------

GIT_VARIABLES = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    # Submodules may be local.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, without this machine's settings."""
    return subprocess.run(
        ("git", "-C", str(folder), *arguments),
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **GIT_VARIABLES},
    ).stdout.strip()


def repository(folder: Path) -> str:
    """Make a folder a repository with all its files in one commit on `main`; the address."""
    git(folder, "init", "-q", "-b", "main")
    # Servers of today give any commit they are asked for.
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit(folder, "first")
    return folder.as_uri()


def commit(folder: Path, message: str) -> str:
    """Commit everything; the commit."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")

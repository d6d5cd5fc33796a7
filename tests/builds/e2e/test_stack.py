"""A stack from the command line: dependent and independent components."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call
from tests.builds.e2e.projects import library, write

STACK = """\
summary = "a library, an extension that links to it, and one on its own"
version = "1.0"

[environment]
use = "venv"
base = "{base}"
[environment.variables]
FROM_THE_STACK = "{{prefix}}"

[[components]]
recipe = "./pymath.toml"
needs = ["mathlib"]

[[components]]
recipe = "./mathlib.toml"
[components.settings]
LOUD = true

[[components]]
recipe = "./other.toml"
"""
# Each waits for the other: they can only be built side by side.
WAITING = """\
[[prepare]]
run = ["sh", "-c", "touch {meet}/{own}; i=0; while [ ! -e {meet}/{other} ]; do i=$((i+1)); \
[ $i -gt 600 ] && exit 1; sleep 0.1; done"]
"""
MATHLIB = """\
version = "2.5"
builder = "cmake"
patches = ["louder.patch"]

[source.folder]
path = "{source}"

[[prepare]]
run = ["sh", "-c", "echo '#define MADE_BY \\"{{name}} {{version}}\\"' > made_by.h"]
why = "the header is generated"
{waiting}
[verify]
files = ["lib/libmathlib.so"]
libraries = ["lib/libmathlib.so"]
"""
PATCH = """\
--- a/one.c
+++ b/one.c
@@ -1,2 +1,3 @@
 #include "mathlib.h"
-int mathlib_one(void) { return 1; }
+#include "made_by.h"
+int mathlib_one(void) { return sizeof MADE_BY; }
"""
PYMATH = """\
version = "1.0"
builder = "python"

[source.folder]
path = "{source}"

[options]
MATH_VERSION = "{{needs.mathlib.version}}"
MATH_PREFIX = "{{needs.mathlib.prefix}}"

[verify]
import-name = "pymath"
libraries = ["pymath*.so"]
ignored-options = ["MATH_VERSION", "MATH_PREFIX"]
[[verify.smoke]]
name = "calls the library"
python = "import pymath; assert pymath.two() == 200, pymath.two()"
"""
PYMATH_C = """\
#include <Python.h>
#include <stdlib.h>
#include <mathlib.h>
static PyObject *one(PyObject *self, PyObject *none)
{
    if (secure_getenv("PYMATH_FAILS")) /* in glibc since 2.17 */
        return NULL;
    return PyLong_FromLong(mathlib_one());
}
static PyObject *two(PyObject *self, PyObject *none) { return PyLong_FromLong(mathlib_two()); }
static PyMethodDef methods[] = {
    {"one", one, METH_NOARGS, ""}, {"two", two, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "pymath", VERSION, -1, methods};
PyMODINIT_FUNC PyInit_pymath(void) { return PyModule_Create(&module); }
"""
PYMATH_SETUP = """\
import os
from setuptools import Extension, setup

version = os.environ["MATH_VERSION"]
assert os.path.exists(os.environ["MATH_PREFIX"] + "/lib/libmathlib.so")
setup(
    name="pymath",
    version="1.0",
    ext_modules=[
        Extension(
            "pymath", ["pymath.c"], libraries=["mathlib"],
            define_macros=[("VERSION", '"built with ' + version + '"')],
        )
    ],
)
"""


def write_stack(folder: Path, base: Path) -> Path:
    meet = folder / "meet"
    meet.mkdir(parents=True)
    mathlib = library(folder / "sources" / "mathlib", "mathlib")
    other = library(folder / "sources" / "other", "other")
    pymath = write(folder / "sources" / "pymath", {"setup.py": PYMATH_SETUP, "pymath.c": PYMATH_C})
    waiting = WAITING.format(meet=meet, own="mathlib", other="other")
    waits = WAITING.format(meet=meet, own="other", other="mathlib")
    write(
        folder,
        {
            "stack.toml": STACK.format(base=base),
            "mathlib.toml": MATHLIB.format(source=mathlib, waiting=waiting),
            "louder.patch": PATCH,
            "other.toml": f'[source.folder]\npath = "{other}"\n{waits}',
            "pymath.toml": PYMATH.format(source=pymath),
        },
    )
    return folder / "stack.toml"


class Stack:
    """The finished stack."""

    def __init__(self, cli: Cli, recipe: Path) -> None:
        self.cli = cli
        self.words = (str(recipe), "--name", "stack", "--cache", "none")
        self.folder = cli.folder("stack")
        self.sources = recipe.parent / "sources"


@pytest.fixture(scope="module")
def stack(shared_cli: Cli, shared_folder: Path, tools: Path) -> Stack:
    made = Stack(shared_cli, write_stack(shared_folder / "recipes", tools / "bin" / "python"))
    shared_cli.build(*made.words)
    return made


def test_independent_components_are_built_side_by_side(stack: Stack) -> None:
    """Their preparations waited for each other, and both came to an end."""
    for name in ("mathlib", "other"):
        assert stack.cli.state("stack", f"{name}/tree")["status"] == "done"
    assert call(stack.folder / "prefix/lib/libother.so", "other_two") == 2


def test_needs_patches_placeholders_and_settings_take_effect(stack: Stack) -> None:
    said = "import pymath; print(pymath.one(), pymath.two(), pymath.__doc__)"
    done = subprocess.run(
        [str(stack.folder / "bin" / "python"), "-c", said],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.stdout == f"{len('mathlib 2.5') + 1} 200 built with 2.5\n"
    assert len(list((stack.folder / "wheels").glob("pymath-1.0-*.whl"))) == 1


def test_the_record_knows_all_components(stack: Stack) -> None:
    record = stack.cli.record("stack")
    parts = {part["name"]: part for part in record["components"]}
    assert list(parts) == ["mathlib", "pymath", "other"], "each behind those it needs"
    assert parts["mathlib"]["options"] == {"LOUD": True}
    assert [patch["name"] for patch in parts["mathlib"]["patches"]] == ["louder.patch"]
    assert parts["pymath"]["needs"] == ["mathlib"]
    assert parts["pymath"]["verified"]["smoke"][0]["passed"]
    assert f"{stack.folder}/prefix/lib" in record["variables"]["LD_LIBRARY_PATH"]


def test_portable_wheels_run_without_the_build(stack: Stack, tools: Path, tmp_path: Path) -> None:
    output = tmp_path / "portable"
    ended = stack.cli.build("wheels", "stack", "--output", str(output), "--json")
    (wheel,) = json.loads(ended.out)["wheels"]
    assert "manylinux_2_" in wheel["platform"]
    (library,) = wheel["libraries"]
    assert library.startswith("libmathlib")
    # In an environment of its own, while the build does not exist.
    home = tmp_path / "env"
    python = home / "bin" / "python"
    subprocess.run([tools / "bin" / "python", "-m", "venv", home, "--without-pip"], check=True)
    site = next(home.glob("lib/python3*/site-packages"))
    pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "--no-index"]
    subprocess.run([*pip, "--target", str(site), wheel["file"]], check=True, capture_output=True)
    hidden = stack.folder.with_name("hidden")
    stack.folder.rename(hidden)
    try:
        script = "import pymath; print(pymath.two())"
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    finally:
        hidden.rename(stack.folder)
    assert done.stdout == "200\n", done.stderr


def test_a_wheel_that_needs_a_newer_system(stack: Stack, tmp_path: Path) -> None:
    """The extension uses a function of a glibc that is newer than the platform."""
    old = f"manylinux_2_5_{os.uname().machine}"
    words = ("wheels", "stack", "--output", str(tmp_path / "old"), "--platform", old)
    ended = stack.cli.build(*words, code=5)
    assert "auditwheel cannot repair pymath" in ended.err
    assert not list((tmp_path / "old").iterdir())


def test_activation_twice_is_once(stack: Stack) -> None:
    script = (
        '. "$1"; first=$(env | sort); . "$1"; second=$(env | sort)\n'
        '[ "$first" = "$second" ] || { echo changed; exit 1; }\n'
        'python -c "import pymath; print(pymath.two())"; echo "$FROM_THE_STACK"\n'
        "torchyard_deactivate; command -v python || echo gone"
    )
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(stack.folder / "activate")],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/nonexistent:/usr/bin:/bin", "HOME": "/"},
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["200", f"{stack.folder}/prefix"]
    assert not lines[2].startswith(str(stack.folder))


def test_a_second_run_does_nothing(stack: Stack) -> None:
    assert "nothing to do" in stack.cli.build(*stack.words).out


def test_rebuild_of_one_component_and_of_what_needs_it(stack: Stack) -> None:
    source = stack.folder / "trees" / "mathlib" / "two.c"
    text = source.read_text()
    source.write_text(text.replace("FACTOR 100", "FACTOR 101"))
    ended = stack.cli.build(
        *("rebuild", "stack", "--component", "mathlib", "--dependents", "--json"), code=5
    )
    assert "failed verification" in ended.err, "the smoke test of pymath wants 200"
    source.write_text(text)
    document = stack.cli.build(
        *("rebuild", "stack", "--component", "mathlib", "--dependents", "--json")
    ).json()
    assert "mathlib/build" in document["ran"]
    assert "pymath/verify" in document["ran"]
    assert not any(name.startswith("other/") for name in document["ran"])
    assert "nothing to do" in stack.cli.build(*stack.words).out


def test_keep_going_builds_what_does_not_need_the_broken_one(stack: Stack) -> None:
    broken = stack.sources / "mathlib" / "two.c"
    text = broken.read_text()
    broken.write_text("int mathlib_two(void) { return nothing_of_that_name; }\n")
    other = stack.sources / "other" / "two.c"
    other.write_text(other.read_text().replace("2 * FACTOR", "4 * FACTOR"))
    ended = stack.cli.build(*stack.words, "--keep-going", code=5)
    assert "nothing_of_that_name" in ended.err
    assert call(stack.folder / "prefix/lib/libother.so", "other_two") == 4
    assert "pymath/build: " not in ended.err, "it needs the broken one"
    broken.write_text(text)
    document = stack.cli.build(*stack.words, "--json").json()
    assert not any(name.startswith("other/") for name in document["ran"])


def test_clean_of_one_component(stack: Stack) -> None:
    stack.cli.build("clean", "stack", "--component", "other", "--level", "tree")
    assert not (stack.folder / "trees" / "other").exists()
    assert (stack.folder / "trees" / "mathlib").exists()
    document = stack.cli.build(*stack.words, "--json").json()
    assert [name for name in document["ran"] if not name.startswith("other/")] == []
    stack.cli.build("clean", "stack", "--level", "all", "--component", "other", code=2)
    stack.cli.build("clean", "stack", "--level", "all")
    assert not stack.folder.exists()
    assert stack.cli.build("list").out == "no builds yet\n"

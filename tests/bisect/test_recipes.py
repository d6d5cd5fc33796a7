"""`torchyard bisect --recipe`: revisions of a CMake project, and versions of a package with C code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bisect.git_project import make_project
from tests.builds.e2e.conftest import tools  # noqa: F401  # a fixture
from tests.builds.e2e.projects import write
from tests.cli.command_line import CompletedCommand, call

Capture = pytest.CaptureFixture[str]
BROKEN, CULPRIT = 4, 5
WAIT_S = 240.0
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(tiny C)
add_executable(tiny main.c work.c)
install(TARGETS tiny RUNTIME DESTINATION bin)
"""
MAIN = """\
#include <stdio.h>
double work(void);
int main(void) { printf("torchyard: %.9f\\n", work()); return 0; }
"""
SETUP = """\
from setuptools import Extension, setup

setup(name="tinyspam", version="{version}", py_modules=[], ext_modules=[Extension("tinyspam", ["tinyspam.c"])])
"""
EXTENSION = """\
#include <Python.h>
static PyObject *work(PyObject *self, PyObject *nothing) {{ return PyFloat_FromDouble({value}); }}
static PyMethodDef methods[] = {{{{"work", work, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "tinyspam", "", -1, methods}};
PyMODINIT_FUNC PyInit_tinyspam(void) {{ return PyModule_Create(&module); }}
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """Revisions of a project, slower from one on, of which the one before does not compile."""
    values = ["0.5"] * BROKEN + ["undeclared"] + ["0.6"] * 3
    revisions = [
        {
            "CMakeLists.txt": CMAKE,
            "main.c": MAIN,
            "work.c": f"double work(void) {{ return {value}; }}\n",
        }
        for value in values
    ]
    return make_project(tmp_path / "project", revisions)


def arguments(*options: str) -> list[str]:
    shared = ["--recipe", "generic", "--metric", "printed", "--time", "60s", "--json"]
    return ["bisect", *shared, *options]


def found(ended: CompletedCommand) -> dict[str, Any]:
    assert ended.document["result"] == "culprit"
    return ended.document


def test_revisions_are_built_and_broken_ones_skipped(capsys: Capture, commits: list[str]) -> None:
    options = ["--repo", "project", "--good", commits[0], "--command", "{prefix}/bin/tiny"]
    document = found(call(capsys, *arguments(*options)))
    assert [one["commit"] for one in document["candidates"]] == commits[BROKEN : CULPRIT + 1]
    (skipped,) = document["skipped"]
    assert skipped["commit"] == commits[BROKEN]
    assert "work.c:1:28: error: 'undeclared'" in skipped["why"].replace("\u2018", "'").replace(
        "\u2019", "'"
    )
    # Another search uses the same builds.
    ended = call(capsys, *arguments(*options, "--bad", commits[CULPRIT]))
    assert [one["commit"] for one in found(ended)["candidates"]] == commits[BROKEN : CULPRIT + 1]
    built = {line for line in ended.err.splitlines() if "generic/build: done" in line}
    assert len(built) <= 1


def test_a_search_killed_during_a_build_resumes(commits: list[str], tmp_path: Path) -> None:
    options = ["--repo", "project", "--good", commits[0], "--command", "{prefix}/bin/tiny"]
    argv = [sys.executable, "-m", "torchyard", *arguments(*options)]
    builds = tmp_path / "home" / "builds"
    for count in (1, 3):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + WAIT_S
        while len(list(builds.glob("*/trees"))) < count and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S)
    ended = CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)
    assert [one["commit"] for one in found(ended)["candidates"]] == commits[BROKEN : CULPRIT + 1]


def test_a_good_end_that_does_not_build(capsys: Capture, commits: list[str]) -> None:
    options = ["--repo", "project", "--good", commits[BROKEN], "--command", "{prefix}/bin/tiny"]
    ended = call(capsys, *arguments(*options))
    assert ended.code == 5
    assert "undeclared" in ended.err


def make_sdist(folder: Path, version: str, value: str) -> None:
    name = f"tinyspam-{version}"
    files = {
        "setup.py": SETUP.format(version=version),
        "tinyspam.c": EXTENSION.format(value=value),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: tinyspam\nVersion: {version}\n",
    }
    source = write(folder / "unpacked" / name, files)
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(source, arcname=name)


def test_versions_are_built_from_source(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tools: Path,  # noqa: F811
) -> None:
    values = {"1.0": "0.5", "1.1": "undeclared", "1.2": "0.7"}
    for version, value in values.items():
        make_sdist(tmp_path / "sdists", version, value)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "sdists"))
    command = "{python} -c 'import tinyspam; print(\"torchyard:\", tinyspam.work())'"
    options = ["--releases", "tinyspam:1.0..1.2", "--set", "variant=python", "--command", command]
    options += [
        "--set",
        f"environment.base={tools}/bin/python",
        "--set",
        "verify.import-name=tinyspam",
    ]
    options += ["--set", "environment.venv.packages-=numpy"]
    document = found(call(capsys, *arguments(*options)))
    assert [one["commit"] for one in document["candidates"]] == ["1.1", "1.2"]
    assert "undeclared" in document["skipped"][0]["why"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--good", "HEAD~1", "--recipe", "arm-stack"), "is a stack"),
        (("--good", "HEAD~1", "--recipe", "missing"), "missing"),
        (("--good", "HEAD~1", "--recipe", "generic", "--set", "cmake.fodler=x"), "cmake"),
        (("--good", "HEAD~1", "--set", "variant=python"), "applies to --recipe"),
        (("--settings", "A=1", "A=2", "--recipe", "generic"), "does not apply to --recipe"),
        (("--good", "HEAD~1", "--recipe", "generic", "--python", "/bin/sh"), "environment.python"),
    ],
)
def test_recipes_that_do_not_apply(
    capsys: Capture, tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    make_project(tmp_path / "project", [{"a": "1"}] * 3)
    repo = ["--repo", "project"] if "--good" in options else []
    ended = call(capsys, "bisect", *repo, *options, "--command", "true")
    assert ended.code == 2, ended.err
    assert text in ended.err

"""Error messages of failed builds: errors in C, in recipes, a missing network."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.builds.e2e.build_cli import Cli, call
from tests.builds.e2e.projects import broken_library, library, python_project, write
from tests.builds.sandbox.sandbox_commands import needs_cut_network

QUICK = ("--cache", "none", "--no-doctor")
HOST = "downloads.example.invalid"
DOWNLOADING = """\
cmake_minimum_required(VERSION 3.18)
project(downloading C)
file(DOWNLOAD https://downloads.example.invalid/x.tgz ${CMAKE_BINARY_DIR}/x.tgz STATUS status)
list(GET status 0 code)
list(GET status 1 words)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "cannot get x.tgz: ${words}")
endif()
"""
REACHING_SETUP = """\
import socket
from setuptools import setup

socket.create_connection(("downloads.example.invalid", 443), timeout=20)
setup(name="spam", version="1.5", packages=["spam"])
"""


def test_a_compile_error_is_reported_with_a_command_to_repeat_it(cli: Cli, tmp_path: Path) -> None:
    source = broken_library(tmp_path / "broken")
    words = ("generic", "--name", "broken", "--set", f"source.folder.path={source}", *QUICK)
    ended = cli.build(*words, code=5)
    error = ended.err[ended.err.index("error: ") :]
    assert error.startswith("error: the step generic/build failed: exit code ")
    assert "two.c:1:29: error: 'undeclared_number' undeclared" in error
    folder = cli.folder("broken")
    assert f"log:  {folder}/logs/generic-build.log" in error
    assert (folder / "trees/generic/build/CMakeFiles/tiny.dir/one.c.o").exists()
    line = next(line for line in error.splitlines() if "the command again: " in line)
    again = subprocess.run(
        ["sh", "-c", line.partition("the command again: ")[2]],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    assert again.returncode == cli.state("broken", "generic/build")["exit_code"] != 0
    assert "two.c:1:29" in again.stdout + again.stderr
    shown = cli.build("list").out
    assert "broken " in shown
    assert "not finished" in shown
    assert "is not a finished build" in cli.build("show", "broken", code=2).err
    # The mistake is fixed in the source: the same command goes on.
    library(source)
    document = cli.build(*words, "--json").json()
    assert "generic/build" in document["ran"]
    assert call(folder / "prefix/lib/libtiny.so", "tiny_two") == 2


def test_the_error_as_json(cli: Cli, tmp_path: Path) -> None:
    source = broken_library(tmp_path / "broken")
    words = ("generic", "--name", "broken", "--set", f"source.folder.path={source}", *QUICK)
    document = cli.build(*words, "--quiet", "--json", code=5).json()
    assert document["error"]["exit_code"] == 5
    assert "undeclared_number" in document["error"]["why"]
    assert document["error"]["log"].endswith("generic-build.log")


def test_explain_gives_the_same_cause_for_the_log(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("[1/2] cc -c two.c\ntwo.c:1:29: error: 'undeclared_number' undeclared\n")
    assert "undeclared_number" in cli.build("explain", str(log)).out
    assert cli.build("explain", str(log), "--json").json()["diagnosis"]


@needs_cut_network
def test_a_configure_step_that_downloads_is_reported_by_name(cli: Cli, tmp_path: Path) -> None:
    source = write(tmp_path / "downloading", {"CMakeLists.txt": DOWNLOADING})
    words = ("generic", "--name", "d", "--set", f"source.folder.path={source}", *QUICK)
    ended = cli.build(*words, code=5)
    assert "generic/configure failed" in ended.err
    assert HOST in ended.err[ended.err.index("error: the step") :]


@needs_cut_network
def test_a_setup_py_that_opens_a_socket_is_reported_by_name(
    cli: Cli, tmp_path: Path, tools: Path
) -> None:
    source = python_project(tmp_path / "spam", "setup.py")
    write(source, {"setup.py": REACHING_SETUP})
    ended = cli.build(
        *("generic", "--name", "d", "--set", "builder=python", *QUICK),
        *("--set", f"source.folder.path={source}", "--set", "python.front-end=setup.py"),
        *("--set", f"environment.python={tools}/bin/python"),
        code=5,
    )
    assert "generic/build failed" in ended.err
    assert HOST in ended.err[ended.err.index("error: the step") :]

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.builds.verify.sample_components import (
    make_component,
    make_module,
    make_subject,
    needs_cmake,
)
from torchyard.builds import recipe as grammar
from torchyard.builds.cmake_cache import CacheEntry
from torchyard.builds.verify.verification import cache_of, check_options, option_verdict

PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(part NONE)
option(USE_FAST "Be fast" OFF)
option(USE_DEVICE "Use a device" ON)
if(READ_ONLY)
  message(STATUS "read, and never declared")
endif()
if(USE_DEVICE)
  message(WARNING "no device found")
  set(USE_DEVICE OFF CACHE BOOL "Use a device" FORCE)
endif()
"""


def cached(value: str, *, kind: str = "STRING", help_text: str = "Known") -> dict[str, CacheEntry]:
    return {"X": CacheEntry(name="X", kind=kind, value=value, help=help_text)}


@needs_cmake
def test_honoured_overridden_and_ignored_in_a_real_project(tmp_path: Path) -> None:
    options: dict[str, grammar.Scalar] = {
        "USE_FAST": True,
        "USE_DEVICE": "ON",
        "NEVER_FORWARDED": 1,
        "GONE_OPTION": False,
        "UNUSED": "yes",
        "UNUSED_OFF": False,
        "READ_ONLY": True,
        "EXCUSED": 3,
    }
    component = make_component(tmp_path, options=options, ignored_options=("EXCUSED",))
    tree = Path(component.tree)
    (tree / "CMakeLists.txt").write_text(PROJECT)
    given = [
        "-DUSE_FAST=1",
        "-DUSE_DEVICE=ON",
        "-DUNUSED=yes",
        "-DREAD_ONLY=ON",
        "-DUNUSED_OFF=OFF",
    ]
    command = ["cmake", "-G", "Ninja", "-S", str(tree), "-B", str(tree / "build"), *given]
    subprocess.run(command, check=True, capture_output=True)

    checked = check_options(make_subject(component))

    assert {verdict.name: verdict.verdict for verdict in checked.options} == {
        "USE_FAST": "honoured",
        "USE_DEVICE": "overridden",
        "NEVER_FORWARDED": "ignored",
        "GONE_OPTION": "ignored",
        "UNUSED": "unknown",
        "UNUSED_OFF": "unknown",
        "READ_ONLY": "honoured",
        "EXCUSED": "unknown",
    }
    levels = {finding.what.partition("=")[0]: finding.level for finding in checked.findings}
    assert levels == {
        "USE_DEVICE": "failure",
        "NEVER_FORWARDED": "failure",
        "GONE_OPTION": "warning",
        "UNUSED": "warning",
    }, "what is not there cannot be switched on; off is what it already is"
    assert all(finding.fix for finding in checked.findings)
    ignored = next(f for f in checked.findings if f.what.startswith("NEVER_FORWARDED"))
    assert str(tree / "build/CMakeCache.txt") in ignored.why


def test_a_build_without_cmake_is_not_a_finding(tmp_path: Path) -> None:
    component = make_component(tmp_path, options={"FORCE_CUDA": 0}, builder="python")
    checked = check_options(make_subject(component))
    assert [verdict.verdict for verdict in checked.options] == ["unknown"]
    assert checked.findings == ()


def test_the_cache_of_a_python_project_is_in_its_build_folder(tmp_path: Path) -> None:
    table = grammar.PythonTable(build_folder="out/objects")
    component = make_component(tmp_path, builder="python", python_table=table)
    folder = Path(component.tree, "out/objects")
    folder.mkdir(parents=True)
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={component.tree}\n"
    (folder / "CMakeCache.txt").write_text(home)
    assert cache_of(component) == folder / "CMakeCache.txt"


@pytest.mark.parametrize(
    ("requested", "cache", "told", "verdict"),
    [
        (True, "ON", "1", "honoured"),
        (True, "ON", "OFF", "overridden"),
        (False, "ON", "0", "honoured"),
        (True, "ON", None, "honoured"),
        (True, "OFF", None, "overridden"),
        (1, "TRUE", None, "honoured"),
        ("off", "0", "OFF", "honoured"),
    ],
)
def test_the_finished_module_takes_precedence(
    requested: grammar.Scalar, cache: str, told: str | None, verdict: str
) -> None:
    config = {} if told is None else {"X": told}
    found = option_verdict("X", requested, cache=cached(cache), config=config, is_torch=True)
    assert found.verdict == verdict
    assert (found.cache, found.config) == (cache, told)


def torch_verdict(
    name: str, requested: grammar.Scalar, cache: dict[str, str], **config: str
) -> Any:
    entries = {
        key: CacheEntry(name=key, kind="STRING", value=value, help="Known")
        for key, value in cache.items()
    }
    return option_verdict(name, requested, cache=entries, config=config, is_torch=True)


def test_blas_by_the_name_torch_gives_it() -> None:
    cache = {"BLAS": "OpenBLAS"}
    assert torch_verdict("BLAS", "OpenBLAS", cache, BLAS_INFO="open").verdict == "honoured"
    silent_fallback = torch_verdict("BLAS", "OpenBLAS", cache, BLAS_INFO="generic")
    assert silent_fallback.verdict == "overridden"
    assert "BLAS_INFO=generic" in silent_fallback.why


def test_switches_that_arrive_as_a_build_type() -> None:
    cache = {"CMAKE_BUILD_TYPE": "RelWithDebInfo"}
    assert torch_verdict("REL_WITH_DEB_INFO", 1, cache).verdict == "honoured"
    assert torch_verdict("DEBUG", 1, cache).verdict == "overridden"
    assert torch_verdict("DEBUG", 0, cache).verdict == "honoured"


def test_renamed_variables() -> None:
    cache = {"CAFFE2_STATIC_LINK_CUDA": "1"}
    assert torch_verdict("USE_CUDA_STATIC_LINK", True, cache).verdict == "honoured"
    assert torch_verdict("USE_CUDA_STATIC_LINK", False, cache).verdict == "overridden"


def test_variables_that_find_modules_read() -> None:
    assert torch_verdict("ACL_ROOT_DIR", "/opt/acl", {}).verdict == "unknown"
    other = option_verdict("ACL_ROOT_DIR", "/opt/acl", cache={}, config={}, is_torch=False)
    assert other.verdict == "ignored", "other projects have no such rule"


def test_debug_cuda_is_never_forwarded() -> None:
    assert torch_verdict("DEBUG_CUDA", 1, {"USE_CUDA": "ON"}).verdict == "ignored"


def test_a_type_in_the_name_is_not_a_part_of_it() -> None:
    found = option_verdict("X:BOOL", True, cache=cached("ON"), config={})
    assert (found.name, found.verdict) == ("X", "honoured")


def test_config_is_asked_only_of_torch(tmp_path: Path) -> None:
    component = make_component(tmp_path, options={"X": True})
    module = make_module(config={"X": "OFF"})
    checked = check_options(make_subject(component, module=module))
    assert checked.options[0].config is None

"""No output of compilers, shells and files breaks the doctor."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.builds.doctor.fake_machine import FakeMachine
from torchyard.builds.compatibility import (
    cuda_toolkit,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
    toolkit_supports,
    version_in_range,
)
from torchyard.builds.doctor.configuration import looks_like_option, nearest_option, route_of
from torchyard.builds.doctor.search_paths import parse_search_list
from torchyard.builds.recipe import EnvironmentTable, Recipe

LINES = st.sampled_from(
    [
        "#include <...> search starts here:",
        '#include "..." search starts here:',
        "End of search list.",
        " /a/folder",
        " /another",
        'ignoring nonexistent directory "/gone"',
        "noise",
        "",
    ]
)


@given(st.lists(LINES))
def test_search_lists_hold_only_folders_that_were_listed(lines: list[str]) -> None:
    listed = parse_search_list("cc", "\n".join(lines))
    if listed is not None:
        assert set(listed.folders) <= {"/a/folder", "/another"}
        assert len(set(listed.folders)) == len(listed.folders) > 0


@given(st.text())
def test_any_text_as_a_search_list(text: str) -> None:
    parse_search_list("cc", text)


@given(st.text())
def test_any_text_as_a_version(text: str) -> None:
    assert parse_version(text) is None or isinstance(parse_version(text), Version)
    assert release_facts("pytorch", text).version in known_releases("pytorch")
    cuda_toolkit(text)
    onednn_acl(text)
    toolkit_supports(text, text)


@given(st.integers(0, 60), st.integers(0, 30))
def test_releases_go_up_with_the_version(minor: int, patch: int) -> None:
    facts = release_facts("pytorch", f"2.{minor}.{patch}")
    assert facts.exact is (4 <= minor <= 15)
    nearest = min(max(minor, 4), 15)
    assert facts.version == f"2.{nearest}"


@given(st.integers(10, 14), st.integers(0, 12), st.integers(0, 200))
def test_limits_of_newer_toolkits_are_not_lower(major: int, minor: int, patch: int) -> None:
    one = cuda_toolkit(f"{major}.{minor}.{patch}")
    two = cuda_toolkit(f"{major}.{minor + 1}.{patch}")
    if one is not None:
        assert two is not None
        assert two.gcc_most >= one.gcc_most
        assert two.clang_most >= one.clang_most


@given(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,30}", fullmatch=True), st.sampled_from(["2.4", "2.15"])
)
def test_any_name_of_a_variable(name: str, release: str) -> None:
    assert route_of(name, release) in {"cmake", "environment", "front end", "nowhere"}
    if nearest_option(name):
        assert nearest_option(name) != name
    looks_like_option(name)


@given(st.integers(0, 99), st.integers(0, 99))
def test_ranges_are_by_number_not_by_letter(left: int, right: int) -> None:
    assert version_in_range(f">=3.{left}", f"3.{right}") is (right >= left)


@pytest.mark.parametrize(
    "listed",
    [
        "",
        ";;;",
        "8.0 ; 9.0",
        "+PTX",
        "9.0++PTX",
        "8.0,8.6",
        "999.999",
        "a.b",
        "8.0\n9.0",
        "8.0'\"$(x)",
    ],
)
def test_any_list_of_architectures(listed: str, machine: FakeMachine) -> None:
    machine.nvcc("12.4.131")
    machine.nvidia_smi("550.54.14", "8.6")
    recipe = Recipe(
        name="pytorch",
        version="2.6.0",
        environment=EnvironmentTable(use="current"),
        options={"USE_CUDA": True, "TORCH_CUDA_ARCH_LIST": listed},
    )
    for finding in machine.examine(recipe, only="nvidia"):
        assert finding.what
        # What is offered to paste into a shell holds nothing that a shell would run.
        assert not re.search(r"\$\(|`", finding.fix)


@pytest.mark.parametrize(
    "flags", ["-I", "-I ''", "-I'a b'", "--", "-isystem", "-I\\", "'unbalanced", '-DX="a']
)
def test_flags_that_are_odd_or_broken(flags: str, machine: FakeMachine) -> None:
    machine.good_tools()
    machine.variables["CXXFLAGS"] = flags
    machine.examine(only=("include-order", "compilers", "variables"))

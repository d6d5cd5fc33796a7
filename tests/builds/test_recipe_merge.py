"""Merging variants, conditions and settings into one table."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard.builds.recipe_file import Choice, merged, parse_setting
from torchyard.errors import UsageError


def choose(
    variant: str = "",
    version: str = "",
    settings: dict[str, Any] | None = None,
    machine: str = "x86_64",
) -> Choice:
    return Choice(variant=variant, version=version, settings=settings or {}, machine=machine)


BASE: dict[str, Any] = {
    "version": "2.6.0",
    "options": {"USE_CUDA": True, "BUILD_TEST": False},
    "patches": ["a.patch"],
    "source": {"use": "git", "git": {"url": "u"}, "debian": {"package": "p"}},
    "variants": {
        "cpu": {"options": {"USE_CUDA": False}, "patches": ["b.patch"]},
        "small": {"extends": "cpu", "options": {"BUILD_TEST": True}},
    },
    "when": [
        {"if": {"release": "<2.8"}, "why": "old", "python": {"configure": ["x"]}},
        {"if": {"source": "debian"}, "options": {"USE_SYSTEM_LIBS": True}},
        {"if": {"machine": ["aarch64", "arm64"]}, "options": {"ARM": True}},
        {"if": {"variant": "cpu", "machine": "x86_64"}, "options": {"BOTH": True}},
    ],
}


def test_a_variant_merges_tables_and_adds_to_lists() -> None:
    table = merged(BASE, choose("cpu"), where="f")
    assert table["options"]["USE_CUDA"] is False
    assert table["options"]["BUILD_TEST"] is False
    assert table["patches"] == ["a.patch", "b.patch"]


def test_a_variant_can_extend_another() -> None:
    table = merged(BASE, choose("small"), where="f")
    assert table["options"]["USE_CUDA"] is False
    assert table["options"]["BUILD_TEST"] is True


def test_variants_that_extend_each_other_are_reported() -> None:
    loop = {"variants": {"a": {"extends": "b"}, "b": {"extends": "a"}}}
    with pytest.raises(UsageError, match="cannot be extended"):
        merged(loop, choose("a"), where="f")


def test_the_base_is_not_changed() -> None:
    merged(BASE, choose("cpu", settings={"NEW": 1}), where="f")
    assert BASE["patches"] == ["a.patch"]
    assert "NEW" not in BASE["options"]


@pytest.mark.parametrize(
    ("version", "has"), [("2.6.0", True), ("2.8.0", False), ("2.13.1", False), ("main", False)]
)
def test_release_conditions_follow_the_chosen_version(version: str, has: bool) -> None:
    table = merged(BASE, choose(version=version), where="f")
    assert ("python" in table) is has


def test_conditions_see_the_users_settings() -> None:
    table = merged(BASE, choose(settings={"source.use": "debian"}), where="f")
    assert table["options"]["USE_SYSTEM_LIBS"] is True


def test_all_parts_of_a_condition_must_hold() -> None:
    assert "BOTH" in merged(BASE, choose("cpu"), where="f")["options"]
    assert "BOTH" not in merged(BASE, choose("cpu", machine="aarch64"), where="f")["options"]
    assert "ARM" in merged(BASE, choose("cpu", machine="aarch64"), where="f")["options"]


def test_settings_win_over_conditions_and_replace_lists() -> None:
    settings = {"source.use": "debian", "USE_SYSTEM_LIBS": False, "patches": ["c.patch"]}
    table = merged(BASE, choose("cpu", settings=settings), where="f")
    assert table["options"]["USE_SYSTEM_LIBS"] is False
    assert table["patches"] == ["c.patch"]


def test_an_unknown_word_with_dots_is_no_option() -> None:
    with pytest.raises(UsageError) as caught:
        merged(BASE, choose(settings={"sorce.use": "git"}), where="f")
    assert "did you mean 'source'?" in caught.value.hint


def test_a_part_of_a_key_in_quotes_may_hold_dots() -> None:
    settings = {'compile-options."*elastic*.c"': "-O0", "compile_options.Flash*": "-O1"}
    table = merged(BASE, choose(settings=settings), where="f")
    assert table["compile-options"] == {"*elastic*.c": "-O0", "Flash*": "-O1"}
    _, key, value = parse_setting('compile-options."a.b.c"=-O0 -g')
    assert merged(BASE, choose(settings={key: value}), where="f")["compile-options"] == {
        "a.b.c": "-O0 -g"
    }


def test_a_setting_below_a_plain_value_is_reported() -> None:
    with pytest.raises(UsageError, match="is not a table"):
        merged(BASE, choose(settings={"version.major": "2"}), where="f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USE_CUDA=0", ("", "USE_CUDA", 0)),
        ("USE_CUDA=true", ("", "USE_CUDA", True)),
        ("version=2.10", ("", "version", "2.10")),
        ("TORCH_CUDA_ARCH_LIST=8.0;9.0+PTX", ("", "TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")),
        ("source.git.ref=main", ("", "source.git.ref", "main")),
        ("pytorch/version=2.5.0", ("pytorch", "version", "2.5.0")),
        ('patches=["a", "b"]', ("", "patches", ["a", "b"])),
        ("CXXFLAGS=-O2 -g=3", ("", "CXXFLAGS", "-O2 -g=3")),
        ("EMPTY=", ("", "EMPTY", "")),
    ],
)
def test_settings_are_toml_where_they_can_be(text: str, expected: tuple[str, str, object]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["USE_CUDA", "=1", "pytorch/=1"])
def test_a_setting_without_key_or_value_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_setting(text)


def test_a_path_in_a_value_is_not_a_component() -> None:
    assert parse_setting("ROCM_PATH=/opt/rocm") == ("", "ROCM_PATH", "/opt/rocm")

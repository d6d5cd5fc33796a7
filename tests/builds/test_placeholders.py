"""Placeholders of recipes."""

from __future__ import annotations

import pytest

from torchyard.builds.recipe import (
    GitSource,
    PrepareCommand,
    Recipe,
    SmokeTest,
    SourceTable,
    VerifyTable,
    fill_placeholders,
)
from torchyard.errors import UsageError

NAMES = {"version": "2.6.0", "tree": "/b/tree", "needs.openblas.prefix": "/b/prefix"}


def test_every_text_is_filled_in() -> None:
    recipe = Recipe(
        name="r",
        source=SourceTable(git=GitSource(url="u", ref="v{version}")),
        options={"OpenBLAS_HOME": "{needs.openblas.prefix}", "COUNT": 3},
        prepare=(PrepareCommand(run=("cp", "{tree}/a", "b")),),
    )
    filled = fill_placeholders(recipe, NAMES, where="r")
    assert filled.source.git is not None
    assert filled.source.git.ref == "v2.6.0"
    assert filled.options == {"OpenBLAS_HOME": "/b/prefix", "COUNT": 3}
    assert filled.prepare[0].run == ("cp", "/b/tree/a", "b")


def test_programs_keep_their_braces() -> None:
    smoke = SmokeTest(name="s", python="print(f'{tree}')")
    recipe = Recipe(name="r", verify=VerifyTable(smoke=(smoke,)))
    assert fill_placeholders(recipe, NAMES, where="r").verify.smoke[0].python == "print(f'{tree}')"


def test_braces_that_are_no_name_stay() -> None:
    recipe = Recipe(name="r", options={"A": "${HOME} {} {1} {A B}"})
    assert fill_placeholders(recipe, NAMES, where="r").options["A"] == "${HOME} {} {1} {A B}"


def test_an_unknown_name_is_reported_with_its_key() -> None:
    recipe = Recipe(name="r", options={"A": "{versoin}"})
    with pytest.raises(UsageError) as caught:
        fill_placeholders(recipe, NAMES, where="r")
    assert "r.options.A: unknown placeholder {versoin}" in caught.value.what
    assert "did you mean 'version'?" in caught.value.hint


def test_one_table_alone_can_be_filled_in() -> None:
    recipe = Recipe(
        name="r",
        source=SourceTable(git=GitSource(url="u", ref="v{version}")),
        options={"A": "{unknown.yet}"},
    )
    filled = fill_placeholders(recipe, {"version": "1"}, where="r", only="source")
    assert filled.source.git is not None
    assert filled.source.git.ref == "v1"
    assert filled.options["A"] == "{unknown.yet}"

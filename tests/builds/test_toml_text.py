"""Tables round-trip through TOML."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.lockfile import to_toml

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = TEXTS | st.booleans() | st.integers(-(2**40), 2**40) | st.lists(TEXTS, max_size=3)
TABLES = st.recursive(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    lambda inner: st.dictionaries(TEXTS, VALUES | inner, max_size=4),
    max_leaves=8,
)


@given(table=TABLES)
def test_any_table_round_trips_through_toml(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_toml_of_floats_and_of_nothing() -> None:
    assert tomllib.loads(to_toml({"a": 1.5, "b": {}, "c": {"d": {}}})) == {
        "a": 1.5,
        "b": {},
        "c": {"d": {}},
    }
    with pytest.raises(TypeError, match="NoneType"):
        to_toml({"a": None})

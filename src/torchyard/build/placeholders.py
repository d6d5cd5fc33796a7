"""Fills {placeholders} of a recipe in: paths and versions that only the plan knows. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from torchyard.core.recipe import Recipe
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.errors import UsageError

__all__ = ["filled_in"]

_NAME: Final = re.compile(r"\{([a-z][a-zA-Z0-9_.-]*)\}")
_AS_WRITTEN: Final = ("smoke", "summary", "why")
"""Keys whose texts are programs or prose, where braces mean braces."""


def filled_in(recipe: Recipe, names: Mapping[str, str], *, where: str, only: str = "") -> Recipe:
    """The recipe with every {name} replaced; an unknown one is an error that names its key.

    `only` fills in one table and leaves the others as they are.
    """
    table = encode(recipe)
    if only:
        table[only] = _walk(table[only], names, f"{where}.{only}")
    else:
        table = _walk(table, names, where)
    return decode(Recipe, table, where=where)


def _walk(value: Any, names: Mapping[str, str], where: str) -> Any:
    if isinstance(value, str):
        return _fill(value, names, where)
    if isinstance(value, dict):
        return {
            key: item if key in _AS_WRITTEN else _walk(item, names, f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_walk(item, names, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def _fill(text: str, names: Mapping[str, str], where: str) -> str:
    def replace(found: re.Match[str]) -> str:
        name = found[1]
        if name not in names:
            raise UsageError(
                f"{where}: {{{name}}} stands for nothing here",
                hint=nearest_hint(name, sorted(names), what="placeholder"),
            )
        return names[name]

    return _NAME.sub(replace, text)

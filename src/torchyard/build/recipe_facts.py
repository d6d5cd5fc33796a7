"""What of a recipe decides the result, as short texts by key, so that two recipes can be compared.

Reads the patches, because their content decides and their names do not. Estimates, checks and words
for people do not count, nor do paths of this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from torchyard.build.sources import used_kind
from torchyard.core.recipe import Recipe
from torchyard.core.records import encode
from torchyard.errors import UsageError

__all__ = ["first_difference", "recipe_digest", "recipe_facts"]

_PLAIN: Final = ("version", "variant", "builder", "needs", "prepare", "known_release")
_TABLES: Final = ("options", "environment", "cmake", "python", "scons", "make")
_OF_THIS_MACHINE: Final = frozenset({"environment.base", "source.folder.path"})


def recipe_facts(recipe: Recipe) -> dict[str, str]:
    """Key -> value, of every key that is not as it is by default; long values as checksums."""
    return dict(sorted(_facts(recipe)))


def recipe_digest(recipe: Recipe) -> str:
    """One checksum of all of them."""
    return _checksum(recipe_facts(recipe))


def first_difference(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str, str]:
    """The first key that differs, with its value before and now; empty texts when none does.

    Another kind of source comes first: the keys of its table all differ because of it.
    """
    for key in sorted({*before, *now}, key=lambda name: (name != "source.use", name)):
        old, new = before.get(key, "not set"), now.get(key, "not set")
        if old != new:
            return key, old, new
    return "", "", ""


def _facts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    table, usual = encode(recipe), encode(Recipe(name=recipe.name))
    for key in _PLAIN:
        if table[key] != usual[key]:
            yield _shown(key), _say(table[key])
    for key in _TABLES:
        for inner, value in table[key].items():
            name = f"{_shown(key)}.{inner if key == 'options' else _shown(inner)}"
            if value != usual[key].get(inner) and name not in _OF_THIS_MACHINE:
                yield name, _say(value)
    if any(table["source"].values()):
        kind = used_kind(recipe.source, f"{recipe.name}: source")
        yield "source.use", kind
        for inner, value in table["source"][kind].items():
            name = f"source.{kind}.{_shown(inner)}"
            if name not in _OF_THIS_MACHINE:
                yield name, _say(value)
    for name in recipe.patches:
        yield f"patches.{name}", _patch_checksum(recipe, name)


def _patch_checksum(recipe: Recipe, name: str) -> str:
    path = Path(recipe.folder, name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{recipe.name}: patches: {path} cannot be read",
            why=str(error.strerror),
            hint="correct the name in the recipe",
        ) from error


def _say(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, sort_keys=True)
    return text if not isinstance(value, (dict, list)) or len(text) <= 60 else _checksum(value)  # noqa: PLR2004


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _shown(key: str) -> str:
    return key.replace("_", "-")

"""Reads recipe files: the shipped ones by name, a user's by path. Knows nothing of building.

A file holds one recipe with its variants and its `[[when]]` tables; `read_recipe` gives the Recipe
that remains after a variant, a version and settings are chosen. Mistakes name the file, the key
and the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from torchyard.build.recipe_merge import Choice, merged
from torchyard.config.toml_file import read_toml
from torchyard.core.recipe import Recipe, Scalar
from torchyard.core.records import decode, nearest_hint
from torchyard.errors import UsageError

__all__ = ["RECIPE_FOLDER", "RecipeFile", "load_recipe_file", "read_recipe", "shipped_recipes"]

RECIPE_FOLDER: Final = Path(__file__).parent / "recipes"
_FILE_KEYS: Final = ("variants", "when", "default-variant")
_FILLED_IN: Final = ("variant", "folder")


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """A recipe file as it was written."""

    path: Path
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The recipe's name: said in the file, or the file's own."""
        return str(self.table.get("name", self.path.stem))

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in the file's order."""
        return tuple(self.table.get("variants", {}))


def shipped_recipes() -> tuple[str, ...]:
    """Names of the recipes that come with Torchyard."""
    return tuple(sorted(path.stem for path in RECIPE_FOLDER.glob("*.toml")))


def load_recipe_file(name_or_path: str, *, folder: Path | None = None) -> RecipeFile:
    """The file of a shipped recipe's name, or at a path (relative to `folder`)."""
    path = RECIPE_FOLDER / f"{name_or_path}.toml"
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = (folder or Path.cwd()) / Path(name_or_path).expanduser()
    elif name_or_path not in shipped_recipes():
        raise UsageError(
            f"there is no recipe {name_or_path!r}",
            hint=nearest_hint(name_or_path, shipped_recipes(), what="recipe")
            + "; a recipe of your own is named by its path, such as ./mine.toml",
        )
    table = read_toml(path, what="recipe file")
    _check_keys(path, table)
    return RecipeFile(path=path, table=table)


def read_recipe(
    file: RecipeFile,
    *,
    variant: str = "",
    version: str = "",
    settings: Mapping[str, Scalar | list[Scalar]] | None = None,
    machine: str,
) -> Recipe:
    """The recipe with one variant, one version and the user's settings merged in."""
    chosen = variant or str(file.table.get("default-variant", ""))
    if chosen and chosen not in file.variants:
        raise UsageError(
            f"{file.path.name}: {file.name} has no variant {chosen!r}",
            hint=nearest_hint(chosen, file.variants, what="variant"),
        )
    choice = Choice(variant=chosen, version=version, settings=settings or {}, machine=machine)
    table = merged(file.table, choice, where=str(file.path))
    table["name"] = file.name
    table["variant"] = chosen
    table["folder"] = str(file.path.resolve().parent)
    try:
        return decode(Recipe, table, where="")
    except UsageError as error:
        raise UsageError(f"{file.path}: {error.what}", why=error.why, hint=error.hint) from error


def _check_keys(path: Path, table: Mapping[str, Any]) -> None:
    """Unknown top keys are told at once, whatever variant is asked for."""
    known = [
        field.name.replace("_", "-") for field in fields(Recipe) if field.name not in _FILLED_IN
    ]
    known += _FILE_KEYS
    for key in table:
        if key not in known:
            raise UsageError(
                f"{path}: unknown key {key!r}", hint=nearest_hint(key, known, what="key")
            )
    when = table.get("when", [])
    if not isinstance(when, list) or not all(
        isinstance(item, Mapping) and isinstance(item.get("if", {}), Mapping) for item in when
    ):
        raise UsageError(
            f"{path}: when must be a list of tables", hint="write [[when]] with `if = {...}`"
        )
    variants = table.get("variants", {})
    if not isinstance(variants, Mapping) or not all(
        isinstance(item, Mapping) for item in variants.values()
    ):
        raise UsageError(
            f"{path}: variants must be tables", hint="write [variants.NAME] with keys below it"
        )
    for name, overlay in variants.items():
        for key in overlay:
            if key not in [*known, "extends"] or key in _FILE_KEYS:
                raise UsageError(
                    f"{path}: variants.{name}: unknown key {key!r}",
                    hint=nearest_hint(key, known, what="key"),
                )

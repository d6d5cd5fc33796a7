"""Read recipe files and resolve a request into the ordered list of components to build.

A shipped recipe is found by name in `recipes/`, a user's recipe by path. A variant, `[[when]]`
tables and `--set` settings are merged into one table before it is decoded. `resolve` follows the
components of a stack and chooses the versions of companions that match torch.
"""

from __future__ import annotations

import copy
import hashlib
import platform
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from torchyard.builds.compatibility import release_facts
from torchyard.builds.environments.conda import conda_platform
from torchyard.builds.recipe import (
    ComponentTable,
    CondaTable,
    EnvironmentTable,
    Recipe,
    Scalar,
)
from torchyard.builds.setting_checks import changed_list, check_setting, split_variant
from torchyard.core.records import decode, nearest_hint
from torchyard.core.toml_file import MAX_DEPTH, parse_toml, read_toml
from torchyard.errors import UsageError

_KEY_PART: Final = re.compile(r'"([^"]*)"|([^."]+)')
_CONDITIONS: Final = ("release", "source", "environment", "machine", "variant")
_VERSIONS: Final = ("version", "environment.python", "environment.cuda", "environment.gcc")
_FIELDS: Final = {field.name.replace("_", "-") for field in fields(Recipe)}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The variant, version and settings chosen for one recipe."""

    variant: str
    version: str
    settings: Mapping[str, Any]
    machine: str


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Split `[COMPONENT/]KEY=VALUE`; parse the value as TOML, else take it as a string."""
    key, equals, raw = text.partition("=")
    component, slash, rest = key.rpartition("/")
    if not equals or not (rest if slash else key):
        raise UsageError(
            f"--set: {text!r} is not KEY=VALUE",
            hint="write USE_CUDA=0, version=2.6.0 or source.git.ref=main",
        )
    try:
        value: Any = parse_toml(f"value = {raw}", where="--set")["value"]
    except UsageError as error:
        if not isinstance(error.__cause__, tomllib.TOMLDecodeError):
            raise
        value = raw
    # A version such as 2.10 must not become the number 2.1, nor `environment.gcc=12` a number.
    is_version = isinstance(value, float) or (isinstance(value, int) and rest in _VERSIONS)
    return component, rest, raw if is_version else value


def merged(table: Mapping[str, Any], choice: Choice, *, where: str) -> dict[str, Any]:
    """Merge variant, version, settings and `when` tables into one recipe table."""
    result = {
        key: copy.deepcopy(value)
        for key, value in table.items()
        if key not in ("variants", "when", "default-variant")
    }
    for overlay in _variant_chain(table, choice.variant, where):
        _overlay(result, overlay)
    if choice.version:
        result["version"] = choice.version
    replacing = {key: value for key, value in choice.settings.items() if key[-1:] not in ("+", "-")}
    _apply_settings(result, replacing, where)
    for index, conditional in enumerate(table.get("when", ())):
        place = f"{where}: when[{index}]"
        if _condition_holds(conditional.get("if", {}), result, choice, place):
            rest = {key: value for key, value in conditional.items() if key not in ("if", "why")}
            if choice.version:  # the user's choice takes precedence
                rest.pop("version", None)
            _overlay(result, rest)
    # Before the settings, which add and remove packages by name.
    environment = result.get("environment")
    conda = environment.get("conda") if isinstance(environment, dict) else None
    if isinstance(conda, dict) and isinstance(conda.get("packages"), list):
        name = conda_platform(choice.machine)
        conda["packages"] = [
            item.replace("{conda-platform}", name) if isinstance(item, str) else item
            for item in conda["packages"]
        ]
    _apply_settings(result, choice.settings, where)
    return result


def _variant_chain(table: Mapping[str, Any], name: str, where: str) -> list[Mapping[str, Any]]:
    """Return the tables of a variant and of those it extends, base first."""
    chain: list[Mapping[str, Any]] = []
    names: set[str] = set()
    while name:
        if name in names or name not in table.get("variants", {}):
            raise UsageError(
                f"{where}: variants: {name!r} cannot be extended",
                why="there is no such variant, or `extends` forms a cycle",
                hint="correct `extends`",
            )
        names.add(name)
        overlay = dict(table["variants"][name])
        name = str(overlay.pop("extends", ""))
        chain.insert(0, overlay)
    return chain


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        below_value = below.get(key)
        if isinstance(value, Mapping) and isinstance(below_value, dict):
            _overlay(below_value, value)
        elif isinstance(value, list) and isinstance(below_value, list):
            below[key] = below_value + copy.deepcopy(value)
        else:
            below[key] = copy.deepcopy(value)


def _apply_settings(table: dict[str, Any], settings: Mapping[str, Any], where: str) -> None:
    for key, value in settings.items():
        path = _key_path(key)
        plain = path[0].rstrip("+-").replace("_", "-")
        path[0] = path[0].replace("_", "-") if plain in _FIELDS else path[0]
        if len(path) > 1 and path[0] not in _FIELDS:
            raise UsageError(
                f"--set {key}: there is no table {path[0]!r} in a recipe",
                hint=nearest_hint(path[0], sorted(_FIELDS), what="table"),
            )
        if len(path) == 1 and plain not in _FIELDS:
            path = ["options", key]
        place = table
        for part in path[:-1]:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--set {key}: {part!r} is not a table in {where}")
            place = inner
        last = path[-1]
        if last.endswith(("+", "-")):
            name = last[:-1]
            place[name] = changed_list(place.get(name), key, copy.deepcopy(value))
        else:
            place[last] = copy.deepcopy(value)


def _key_path(key: str) -> list[str]:
    """Split a dotted key; a quoted part may contain dots: `compile-options."*.c"`."""
    path = [quoted or plain for quoted, plain in _KEY_PART.findall(key)] or [key]
    if len(path) > MAX_DEPTH:
        raise UsageError(
            f"--set {key[:80]!r}...: the key has more than {MAX_DEPTH} parts",
            hint="use fewer parts",
        )
    return path


def _condition_holds(
    condition: Mapping[str, Any], table: Mapping[str, Any], choice: Choice, where: str
) -> bool:
    for key, expected in condition.items():
        if key not in _CONDITIONS:
            raise UsageError(
                f"{where}.if: unknown key {key!r}", hint=nearest_hint(key, _CONDITIONS, what="key")
            )
        if key == "release":
            if not _release_in(str(table.get("version", "")), str(expected), where):
                return False
            continue
        actual = {
            "source": _source_kind(table, where),
            "environment": _table_of(table, "environment", where).get("use", "venv"),
            "machine": choice.machine,
            "variant": choice.variant,
        }[key]
        if actual not in (expected if isinstance(expected, list) else [expected]):
            return False
    return True


def _table_of(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{where}: {key} must be a table", hint=f"write [{key}] with keys below it"
        )
    return value


def _source_kind(table: Mapping[str, Any], where: str) -> str:
    source = _table_of(table, "source", where)
    kinds = [key for key in source if key != "use"]
    return str(source.get("use") or (kinds[0] if len(kinds) == 1 else ""))


def _release_in(version: str, specifiers: str, where: str) -> bool:
    try:
        allowed = SpecifierSet(specifiers, prereleases=True)
    except InvalidSpecifier as error:
        raise UsageError(
            f"{where}.if.release: {specifiers!r} is not a version range", hint='write ">=2.8,<2.14"'
        ) from error
    try:
        return Version(version) in allowed
    except InvalidVersion:
        # A branch or commit counts as newer than all releases.
        return Version("9999") in allowed


RECIPE_FOLDER: Final = Path(__file__).parent / "recipes"
_FILE_KEYS: Final = ("variants", "when", "default-variant")
_FILLED_IN: Final = ("variant", "folder")


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """A recipe file before merging."""

    path: Path
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The recipe's `name`; default: the file name without suffix."""
        return str(self.table.get("name", self.path.stem))

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in file order."""
        return tuple(self.table.get("variants", {}))


def shipped_recipes() -> tuple[str, ...]:
    """Return the names of the shipped recipes."""
    return tuple(sorted(path.stem for path in RECIPE_FOLDER.glob("*.toml")))


def load_recipe_file(name_or_path: str, *, folder: Path | None = None) -> RecipeFile:
    """Read a shipped recipe by name, or a recipe file by path (relative to `folder`)."""
    path = RECIPE_FOLDER / f"{name_or_path}.toml"
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = (folder or Path.cwd()) / Path(name_or_path).expanduser()
    elif name_or_path not in shipped_recipes():
        raise UsageError(
            f"there is no recipe {name_or_path!r}",
            hint=nearest_hint(name_or_path, shipped_recipes(), what="recipe")
            + "; give your own recipe by path, such as ./mine.toml",
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
    """Return the recipe with variant, version and settings merged in."""
    variant, own = split_variant(settings or {}, variant)
    chosen = variant or str(file.table.get("default-variant", ""))
    if chosen and chosen not in file.variants:
        raise UsageError(
            f"{file.path.name}: {file.name} has no variant {chosen!r}",
            hint=nearest_hint(chosen, file.variants, what="variant"),
        )
    choice = Choice(variant=chosen, version=version, settings=own, machine=machine)
    table = merged(file.table, choice, where=str(file.path))
    table["name"] = file.name
    table["variant"] = chosen
    table["folder"] = str(file.path.resolve().parent)
    try:
        recipe = decode(Recipe, table, where="")
    except UsageError as error:
        raise UsageError(f"{file.path}: {error.what}", why=error.why, hint=error.hint) from error
    if recipe.jobs < 0:
        raise UsageError(
            f"{file.path}: jobs is {recipe.jobs}", hint="give a number of jobs; 0 means no limit"
        )
    return recipe


def patch_checksum(recipe: Recipe, name: str) -> str:
    """Return the SHA-256 of a patch of the recipe; raise UsageError if it cannot be read."""
    path = Path(recipe.folder, name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{recipe.name}: patches: {path} cannot be read",
            why=error.strerror or str(error),
            hint="correct `patches` in the recipe",
        ) from error


def _check_keys(path: Path, table: Mapping[str, Any]) -> None:
    """Raise UsageError for unknown keys, in variants that are not used, too."""
    valid = [
        field.name.replace("_", "-") for field in fields(Recipe) if field.name not in _FILLED_IN
    ]
    valid += _FILE_KEYS
    for key in table:
        if key not in valid:
            raise UsageError(
                f"{path}: unknown key {key!r}", hint=nearest_hint(key, valid, what="key")
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
            if key not in [*valid, "extends"] or key in _FILE_KEYS:
                raise UsageError(
                    f"{path}: variants.{name}: unknown key {key!r}",
                    hint=nearest_hint(key, valid, what="key"),
                )


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """The build that a user requests."""

    recipe: str
    variant: str = ""
    version: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Component -> key -> value; the empty name means the requested recipe itself."""
    machine: str = field(default_factory=platform.machine)
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, kw_only=True)
class ResolvedBuild:
    """The requested recipe and its components in build order."""

    recipe: Recipe
    components: tuple[Recipe, ...]

    @property
    def environment(self) -> EnvironmentTable:
        """The environment of the requested recipe, which all components share."""
        return self.recipe.environment


def resolve(request: BuildRequest) -> ResolvedBuild:
    """Read all needed recipes; raise UsageError for cycles and unknown components."""
    file = load_recipe_file(request.recipe, folder=request.folder)
    own = {**request.settings.get("", {}), **request.settings.get(file.name, {})}
    top = read_recipe(
        file,
        variant=request.variant,
        version=request.version,
        settings=own,
        machine=request.machine,
    )
    parts: dict[str, Recipe] = {}
    if top.components:
        for table in top.components:
            recipe = _part(table, request, top)
            if recipe.name in parts:
                raise UsageError(
                    f"{top.name}: duplicate component {recipe.name!r}",
                    hint="remove one, or give its recipe file another `name`",
                )
            parts[recipe.name] = recipe
        top = replace(top, environment=_shared_environment(top, parts.values()))
    else:
        parts[top.name] = top
    _add_needed(parts, request)
    for name in request.settings:
        if name and name not in parts and name != top.name:
            raise UsageError(
                f"--set {name}/...: {top.name} has no component {name!r}",
                hint=nearest_hint(name, tuple(parts), what="component"),
            )
    for name, settings in request.settings.items():
        recipe = top if name in ("", top.name) else parts[name]
        for key in settings:
            shown = f"{name}/{key}" if name else key
            check_setting(shown, _key_path(key), recipe, top=top, parts=parts.values())
    return ResolvedBuild(recipe=top, components=_ordered(parts))


def _part(table: ComponentTable, request: BuildRequest, top: Recipe) -> Recipe:
    file = load_recipe_file(table.recipe, folder=Path(top.folder))
    # The conditions of a component see the environment that all components share.
    shared = {
        f"environment.{key}": value
        for key in ("use", "cuda", "gcc")
        if (value := getattr(top.environment, key))
    }
    recipe = read_recipe(
        file,
        variant=table.variants.get(top.variant, table.variant),
        version=table.version,
        settings={**shared, **table.settings, **request.settings.get(file.name, {})},
        machine=request.machine,
    )
    return replace(recipe, needs=tuple(dict.fromkeys((*recipe.needs, *table.needs))))


def _shared_environment(top: Recipe, parts: Iterable[Recipe]) -> EnvironmentTable:
    """Return the environment of a stack with what the recipes of its components need in it."""
    tables = [top.environment, *(part.environment for part in parts)]

    def joined(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item for value in values for item in value))

    own = top.environment
    root = replace(
        own.debian_root,
        packages=joined(table.debian_root.packages for table in tables),
        build_dependencies_of=joined(table.debian_root.build_dependencies_of for table in tables),
        archive_areas=joined(table.debian_root.archive_areas for table in tables),
    )
    return replace(
        own,
        cuda=next((table.cuda for table in tables if table.cuda), ""),
        gcc=next((table.gcc for table in tables if table.gcc), ""),
        path=joined(table.path for table in tables),
        include=joined(table.include for table in tables),
        libraries=joined(table.libraries for table in tables),
        conda=CondaTable(
            channels=joined(table.conda.channels for table in tables),
            packages=joined(table.conda.packages for table in tables),
        ),
        debian_root=root,
    )


def _add_needed(parts: dict[str, Recipe], request: BuildRequest) -> None:
    waiting = [name for recipe in parts.values() for name in recipe.needs]
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        file = load_recipe_file(name)
        parts[name] = read_recipe(
            file,
            version=_matching_version(name, parts),
            settings=request.settings.get(name, {}),
            machine=request.machine,
        )
        waiting += parts[name].needs


def _matching_version(name: str, parts: Mapping[str, Recipe]) -> str:
    """Return the release of a needed recipe that matches the PyTorch of this build, if any."""
    torch = parts.get("pytorch")
    if torch is None:
        return ""
    facts = release_facts("pytorch", torch.version)
    return facts.acl if name == "arm-compute-library" else facts.companions.get(name, "")


def _ordered(parts: Mapping[str, Recipe]) -> tuple[Recipe, ...]:
    """Return the recipes in dependency order, and in file order where that leaves a choice."""
    done: dict[str, Recipe] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            raise UsageError(f"circular dependency: {cycle}", hint="correct `needs`")
        for needed in parts[name].needs:
            visit(needed, (*path, name))
        done[name] = parts[name]

    for name in parts:
        visit(name, ())
    return tuple(done.values())

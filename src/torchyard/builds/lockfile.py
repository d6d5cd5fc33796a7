"""The lock file: exact sources and packages of a build, in a TOML file that can be committed.

`make_lock` takes them from a record, `apply_lock` puts them into recipes. A recipe that differs
from the one that was locked is an error that names the key; nothing is silently taken from either.
`check_source` compares a fetched source with the lock and with the release that the recipe names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard import __version__
from torchyard.builds.compatibility import parse_version
from torchyard.builds.plan import Component
from torchyard.builds.recipe import Recipe, SourceTable, fill_placeholders
from torchyard.builds.recipe_file import ResolvedBuild, patch_checksum
from torchyard.builds.record import BuildRecord, RecipeIdentity, SourceIdentity
from torchyard.builds.sources import source_identity, used_source_kind
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.core.toml_file import read_toml
from torchyard.errors import StepFailed, UsageError
from torchyard.files.safe_writing import replace_file

_PLAIN: Final = ("version", "variant", "builder", "needs", "prepare", "known_release")
_TABLES: Final = ("options", "environment", "cmake", "python", "scons", "make")
_MACHINE_SPECIFIC: Final = frozenset({"environment.base", "source.folder.path"})


def recipe_facts(recipe: Recipe) -> dict[str, str]:
    """Return all keys that differ from their defaults, with values; long values as checksums."""
    return dict(sorted(_facts(recipe)))


def recipe_digest(recipe: Recipe) -> str:
    """Return one checksum over the facts of a recipe."""
    return _checksum(recipe_facts(recipe))


def first_difference(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the first key that differs, with old and new value; empty strings if none does.

    `source.use` comes first: if it differs, all keys of the source table differ, too.
    """
    for key in sorted({*before, *now}, key=lambda name: (name != "source.use", name)):
        old, new = before.get(key, "not set"), now.get(key, "not set")
        if old != new:
            return key, old, new
    return "", "", ""


def _facts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    table, defaults = encode(recipe), encode(Recipe(name=recipe.name))
    for key in _PLAIN:
        if table[key] != defaults[key]:
            yield _toml_key_name(key), _value_text(table[key])
    for key in _TABLES:
        for inner, value in table[key].items():
            name = f"{_toml_key_name(key)}.{inner if key == 'options' else _toml_key_name(inner)}"
            if value != defaults[key].get(inner) and name not in _MACHINE_SPECIFIC:
                yield name, _value_text(value)
    if any(table["source"].values()):
        kind = used_source_kind(recipe.source, f"{recipe.name}: source")
        yield "source.use", kind
        for inner, value in table["source"][kind].items():
            name = f"source.{kind}.{_toml_key_name(inner)}"
            if name not in _MACHINE_SPECIFIC:
                yield name, _value_text(value)
    for name in recipe.patches:
        yield f"patches.{name}", patch_checksum(recipe, name)


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, sort_keys=True)
    return text if not isinstance(value, (dict, list)) or len(text) <= 60 else _checksum(value)  # noqa: PLR2004


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _toml_key_name(key: str) -> str:
    return key.replace("_", "-")


LOCK_VERSION: Final = 1
_RENEW: Final = "build without --locked and write a new lock file with `torchyard build lock`"
_NOT_PINNED: Final = frozenset({"pip", "uv"})
"""Installers: they do not affect the result, and must not replace themselves."""
_HEADER: Final = (
    "# Exact sources and packages of a build; use it with `torchyard build RECIPE --locked FILE`.\n"
    "# Written by `torchyard build lock`, not by hand.\n"
)


@dataclass(frozen=True, kw_only=True)
class LockedComponent:
    """One component: its source, and the recipe it was locked with."""

    source: SourceIdentity
    recipe_digest: str
    recipe: dict[str, str] = field(default_factory=dict)
    """Key -> value of the recipe, for all keys that affect the result."""


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The content of a lock file."""

    lock_version: int = LOCK_VERSION
    torchyard: str = ""
    name: str
    recipe: RecipeIdentity
    components: dict[str, LockedComponent]
    packages: dict[str, str] = field(default_factory=dict)
    """Name -> exact version of the packages from an index."""


def make_lock(record: BuildRecord, build: ResolvedBuild) -> Lock:
    """Return the lock of a finished build, with the present recipes."""
    components: dict[str, LockedComponent] = {}
    for recipe in build.components:
        part = record.component(recipe.name)
        if part is None or part.source is None:
            raise UsageError(
                f"the record of {record.name!r} has no source for {recipe.name!r}",
                why="the recipe has changed since, or the source was removed before the record was"
                " written",
                hint=f"torchyard build {record.recipe.name} --name {record.name}",
            )
        if part.source.dirty:
            raise UsageError(
                f"{recipe.name}: the source {part.source.origin} cannot be locked",
                why="it was copied with uncommitted changes",
                hint="commit them, and build again",
            )
        components[recipe.name] = LockedComponent(
            source=part.source,
            recipe_digest=recipe_digest(recipe),
            recipe=recipe_facts(recipe),
        )
    return Lock(
        torchyard=__version__,
        name=record.name,
        recipe=record.recipe,
        components=components,
        packages={one.name: one.version for one in record.packages if not one.origin},
    )


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock file atomically."""
    import tomli_w

    replace_file(path, f"{_HEADER}\n{tomli_w.dumps(_lock_table(lock))}")


def read_lock(path: Path) -> Lock:
    """Read a lock file; raise UsageError if it is invalid."""
    table = read_toml(path, what="lock", hint=_RENEW)
    version = table.get("lock-version")
    if not isinstance(version, int):
        raise UsageError(f"{path} is not a lock file", why="it has no lock-version", hint=_RENEW)
    if version > LOCK_VERSION:
        raise UsageError(
            f"{path} was written by a newer Torchyard ({table.get('torchyard', 'unknown')})",
            why=f"its version is {version}; this Torchyard reads up to {LOCK_VERSION}",
            hint="update Torchyard to use it",
        )
    return decode(Lock, table, where=str(path))


def apply_lock(build: ResolvedBuild, lock: Lock) -> ResolvedBuild:
    """Return the build with all sources at their locked revision and all packages pinned."""
    unknown = [
        name for name in lock.components if name not in {one.name for one in build.components}
    ]
    if unknown:
        raise UsageError(
            f"the lock file has the component {unknown[0]!r}, which {build.recipe.name} does not"
            " have",
            hint=f"use the recipe that was locked: {lock.recipe.name}",
        )
    components = tuple(
        replace(recipe, source=locked_source(recipe, lock)) for recipe in build.components
    )
    top = next((one for one in components if one.name == build.recipe.name), build.recipe)
    environment = top.environment
    if environment.use == "venv":
        packages = tuple(dict.fromkeys((*environment.venv.packages, *locked_packages(lock))))
        environment = replace(environment, venv=replace(environment.venv, packages=packages))
    return replace(build, recipe=replace(top, environment=environment), components=components)


def locked_packages(lock: Lock) -> tuple[str, ...]:
    """Return pip requirements with the exact versions of the lock."""
    return tuple(
        f"{name}=={version}" for name, version in lock.packages.items() if name not in _NOT_PINNED
    )


def locked_source(recipe: Recipe, lock: Lock) -> SourceTable:
    """Return the recipe's source, pinned; raise UsageError if the recipe differs from the lock."""
    locked = lock.components.get(recipe.name)
    if locked is None:
        raise UsageError(
            f"the lock file of {lock.name!r} has no component {recipe.name!r}",
            hint=nearest_hint(recipe.name, tuple(lock.components), what="component"),
        )
    key, before, now = first_difference(locked.recipe, recipe_facts(recipe))
    if key:
        raise UsageError(
            f"{recipe.name}: {key} differs from the lock file",
            why=f"locked: {before}; now: {now}",
            hint=f"revert the change, or {_RENEW}",
        )
    filled = fill_placeholders(
        recipe, {"version": recipe.version}, where=recipe.name, only="source"
    )
    return _pinned(filled, locked.source)


def check_fetched(name: str, identity: SourceIdentity, lock: Lock) -> None:
    """Raise StepFailed if the fetched source differs from the lock."""
    for key, locked, fetched in _differences(lock.components[name].source, identity):
        raise StepFailed(
            f"{name}: the fetched source differs from the lock file",
            why=f"{key}: locked {locked or 'none'}, fetched {fetched or 'none'}",
            hint=f"find out why {identity.origin} changed, or {_RENEW}",
        )


def _pinned(recipe: Recipe, locked: SourceIdentity) -> SourceTable:
    source = recipe.source
    kind = used_source_kind(source, f"{recipe.name}: source")
    if kind == "git" and source.git is not None:
        overrides = {
            path: locked.submodules.get(path, ref) for path, ref in source.git.overrides.items()
        }
        return replace(
            source,
            git=replace(source.git, ref=locked.commit or source.git.ref, overrides=overrides),
        )
    if kind == "sdist" and source.sdist is not None:
        return replace(
            source, sdist=replace(source.sdist, version=locked.version, sha256=locked.sha256)
        )
    if kind == "tarball" and source.tarball is not None:
        return replace(source, tarball=replace(source.tarball, sha256=locked.sha256))
    if kind == "debian" and source.debian is not None:
        return replace(source, debian=replace(source.debian, version=locked.version))
    if source.folder is not None:
        # A folder has no revision to pin; it must be unchanged.
        present = source_identity(source, Path(source.folder.path).expanduser())
        for key, before, now in _differences(locked, present):
            raise UsageError(
                f"{recipe.name}: source.folder.path: {present.origin} differs from the lock file",
                why=f"{key}: locked {before or 'none'}, now {now or 'none'}",
                hint=f"restore the folder, or {_RENEW}",
            )
    return source


def _differences(locked: SourceIdentity, present: SourceIdentity) -> Iterator[tuple[str, str, str]]:
    for key in ("kind", "commit", "sha256", "digest"):
        before, now = getattr(locked, key), getattr(present, key)
        if before != now:
            yield key, str(before), str(now)
    if locked.kind in ("sdist", "debian") and locked.version != present.version:
        yield "version", locked.version, present.version
    if locked.dirty != present.dirty:
        yield "uncommitted changes", str(locked.dirty).lower(), str(present.dirty).lower()
    for table in ("submodules", "files"):
        before, now = getattr(locked, table), getattr(present, table)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                yield f"{table}.{name}", before.get(name, ""), now.get(name, "")


def _lock_table(lock: Lock) -> dict[str, Any]:
    """Return the table that is written: keys as in recipes, without default values."""
    return {
        "lock-version": lock.lock_version,
        "torchyard": lock.torchyard,
        "name": lock.name,
        "recipe": _filled_keys(lock.recipe),
        "components": {
            name: {
                "recipe-digest": part.recipe_digest,
                "source": _filled_keys(part.source),
                "recipe": part.recipe,
            }
            for name, part in lock.components.items()
        },
        "packages": lock.packages,
    }


def _filled_keys(value: object) -> dict[str, Any]:
    return {
        key: item
        for key, item in encode(value).items()
        if item is not False and item not in ("", [], {})
    }


def check_source(part: Component, lock: Lock | None) -> None:
    """Raise StepFailed if the fetched source of a component is not the requested one."""
    if lock is None and used_source_kind(part.recipe.source, part.name) != "debian":
        return
    identity = source_identity(part.recipe.source, Path(part.source))
    if lock is not None:
        check_fetched(part.name, identity, lock)
    _check_release(part, identity)


def upstream_version(debian_version: str) -> str:
    """Return the upstream version of a Debian version: 2.6.0 of `1:2.6.0+dfsg-7`."""
    without_epoch = debian_version.rpartition(":")[2]
    upstream = without_epoch.rpartition("-")[0] or without_epoch
    return upstream.partition("+")[0].partition("~")[0]


def _check_release(part: Component, identity: SourceIdentity) -> None:
    """Raise StepFailed if the version in the Debian suite is not the version of the recipe."""
    if identity.kind != "debian" or not identity.version:
        return
    requested = parse_version(part.recipe.version)
    upstream = upstream_version(identity.version)
    fetched = parse_version(upstream)
    if requested is None or fetched is None or requested == fetched:
        return
    raise StepFailed(
        f"{part.name}: Debian's source is release {upstream}, not {requested} as requested",
        why=f"the package is {identity.origin} {identity.version}",
        hint=f"use --set {part.name}/version={upstream}, another suite or another source",
    )

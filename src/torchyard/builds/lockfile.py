"""The lock file: exact sources and packages of a build, in a TOML file that can be committed.

`make_lock` takes them from a record, `apply_lock` puts them into recipes. A recipe that differs
from the one that was locked is an error that names the key; nothing is silently taken from either.
`check_source` compares a fetched source with the lock and with the release that the recipe names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard import __version__
from torchyard.builds.compatibility import parse_version
from torchyard.builds.plan import Component
from torchyard.builds.recipe import Recipe, SourceTable, filled_in
from torchyard.builds.recipe_file import ResolvedBuild
from torchyard.builds.record import BuildRecord, RecipeIdentity, SourceIdentity
from torchyard.builds.sources import source_identity, used_kind
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.core.toml_file import read_toml
from torchyard.errors import StepFailed, UsageError
from torchyard.files.safe_writing import replace_file

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


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_toml(table: Mapping[str, object]) -> str:
    """The table as a document: its plain values first, then its tables, in the given order."""
    return "".join(_toml_lines(table, ())).lstrip("\n")


def _toml_lines(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(_key(part) for part in path)}]\n"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}\n"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _text(text: str) -> str:
    """A basic string; other control characters have no short escape."""
    letters = (
        _ESCAPES.get(letter) or (f"\\u{ord(letter):04x}" if _is_control(letter) else letter)
        for letter in text
    )
    return f'"{"".join(letters)}"'


def _is_control(letter: str) -> bool:
    return ord(letter) < ord(" ") or letter == "\x7f"


LOCK_VERSION: Final = 1
_RENEW: Final = "build without --locked, and write the lock again: torchyard build lock"
_NOT_PINNED: Final = frozenset({"pip", "uv"})
"""Installers: they do not take part in the result, and must not replace themselves."""
_HEADER: Final = (
    "# Exact sources and packages of a build; use it with `torchyard build RECIPE --locked FILE`.\n"
    "# Written by `torchyard build lock`, not by hand.\n"
)


@dataclass(frozen=True, kw_only=True)
class LockedComponent:
    """One component: its source, and the recipe that it was locked with."""

    source: SourceIdentity
    recipe_digest: str
    recipe: dict[str, str] = field(default_factory=dict)
    """Key -> value of all that decides the result."""


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Everything that `--locked` pins."""

    lock_version: int = LOCK_VERSION
    torchyard: str = ""
    name: str
    recipe: RecipeIdentity
    components: dict[str, LockedComponent]
    packages: dict[str, str] = field(default_factory=dict)
    """Name -> exact version, of what came from an index."""


def make_lock(record: BuildRecord, build: ResolvedBuild) -> Lock:
    """The lock of a finished build, with the recipes as they are now."""
    components: dict[str, LockedComponent] = {}
    for recipe in build.components:
        part = record.component(recipe.name)
        if part is None or part.source is None:
            raise UsageError(
                f"the record of {record.name!r} has no source of {recipe.name!r}",
                why="the recipe has changed since, or the source was removed before the record",
                hint=f"torchyard build {record.recipe.name} --name {record.name}",
            )
        if part.source.dirty:
            raise UsageError(
                f"{recipe.name}: the source {part.source.origin} cannot be locked",
                why="it was copied with changes that are in no commit",
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
    """Put the lock into a file, whole or not at all."""
    replace_file(path, f"{_HEADER}\n{to_toml(_lock_table(lock))}")


def read_lock(path: Path) -> Lock:
    """The lock in that file; UsageError names what is wrong with it."""
    table = read_toml(path, what="lock", hint=_RENEW)
    version = table.get("lock-version")
    if not isinstance(version, int):
        raise UsageError(f"{path}: not a lock", why="it has no lock-version", hint=_RENEW)
    if version > LOCK_VERSION:
        raise UsageError(
            f"{path} was written by a newer Torchyard ({table.get('torchyard', 'unknown')})",
            why=f"its version is {version}; this Torchyard reads up to {LOCK_VERSION}",
            hint="update Torchyard to use it",
        )
    return decode(Lock, table, where=str(path))


def apply_lock(build: ResolvedBuild, lock: Lock) -> ResolvedBuild:
    """The same build with every source at its locked revision, and the packages pinned."""
    unknown = [
        name for name in lock.components if name not in {one.name for one in build.components}
    ]
    if unknown:
        raise UsageError(
            f"the lock has {unknown[0]!r}, and {build.recipe.name} has no such component",
            hint=f"name the recipe that was locked: {lock.recipe.name}",
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
    """Requirements that install exactly what was there."""
    return tuple(
        f"{name}=={version}" for name, version in lock.packages.items() if name not in _NOT_PINNED
    )


def locked_source(recipe: Recipe, lock: Lock) -> SourceTable:
    """The recipe's source, pinned; UsageError names the key that no longer fits the lock."""
    locked = lock.components.get(recipe.name)
    if locked is None:
        raise UsageError(
            f"the lock of {lock.name!r} has no component {recipe.name!r}",
            hint=nearest_hint(recipe.name, tuple(lock.components), what="component"),
        )
    key, before, now = first_difference(locked.recipe, recipe_facts(recipe))
    if key:
        raise UsageError(
            f"{recipe.name}: {key} is not as it was locked",
            why=f"locked: {before}; now: {now}",
            hint=f"take the change back, or {_RENEW}",
        )
    filled = filled_in(recipe, {"version": recipe.version}, where=recipe.name, only="source")
    return _pinned(filled, locked.source)


def check_fetched(name: str, found: SourceIdentity, lock: Lock) -> None:
    """Raise StepFailed when what was fetched is not what was locked."""
    for key, wanted, got in _differences(lock.components[name].source, found):
        raise StepFailed(
            f"{name}: what was fetched is not what was locked",
            why=f"{key}: locked {wanted or 'none'}, fetched {got or 'none'}",
            hint=f"find out who changed {found.origin}; or {_RENEW}",
        )


def _pinned(recipe: Recipe, locked: SourceIdentity) -> SourceTable:
    source = recipe.source
    kind = used_kind(source, f"{recipe.name}: source")
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
        # Nothing can be asked of a folder but whether it is still the same.
        found = source_identity(source, Path(source.folder.path).expanduser())
        for key, wanted, got in _differences(locked, found):
            raise UsageError(
                f"{recipe.name}: source.folder.path: {found.origin} is not as it was locked",
                why=f"{key}: locked {wanted or 'none'}, now {got or 'none'}",
                hint=f"put the folder back as it was, or {_RENEW}",
            )
    return source


def _differences(locked: SourceIdentity, found: SourceIdentity) -> Iterator[tuple[str, str, str]]:
    for key in ("kind", "commit", "sha256", "digest"):
        wanted, got = getattr(locked, key), getattr(found, key)
        if wanted != got:
            yield key, str(wanted), str(got)
    if locked.kind in ("sdist", "debian") and locked.version != found.version:
        yield "version", locked.version, found.version
    if locked.dirty != found.dirty:
        yield "changes in no commit", str(locked.dirty).lower(), str(found.dirty).lower()
    for table in ("submodules", "files"):
        before, now = getattr(locked, table), getattr(found, table)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                yield f"{table}.{name}", before.get(name, ""), now.get(name, "")


def _lock_table(lock: Lock) -> dict[str, Any]:
    """The lock as it is written: keys as in recipes, without what reading fills in by itself."""
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
    """Raise StepFailed when the source of a component is another one than was asked for."""
    if lock is None and used_kind(part.recipe.source, part.name) != "debian":
        return
    found = source_identity(part.recipe.source, Path(part.source))
    if lock is not None:
        check_fetched(part.name, found, lock)
    _check_release(part, found)


def upstream_version(debian_version: str) -> str:
    """The project's own version in a Debian one: 2.6.0 of `1:2.6.0+dfsg-7`."""
    without_epoch = debian_version.rpartition(":")[2]
    upstream = without_epoch.rpartition("-")[0] or without_epoch
    return upstream.partition("+")[0].partition("~")[0]


def _check_release(part: Component, found: SourceIdentity) -> None:
    """Debian has one version of a package in a suite, whatever number the recipe would stamp on it."""
    if found.kind != "debian" or not found.version:
        return
    said, real = parse_version(part.recipe.version), upstream_version(found.version)
    got = parse_version(real)
    if said is None or got is None or said == got:
        return
    raise StepFailed(
        f"{part.name}: Debian's source is release {real}, and the build was asked for {said}",
        why=f"the package is {found.origin} {found.version}",
        hint=f"say --set {part.name}/version={real}, or take another suite or another source",
    )

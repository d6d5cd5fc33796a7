"""Merges a variant, `[[when]]` tables and settings into one recipe table. Plain dicts, no I/O.

Tables merge key by key, lists of an overlay are added to the list below, everything else replaces.
A setting of the user's replaces whatever is there, lists too, and comes last.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from torchyard.config.toml_file import DEEPEST, parse_toml
from torchyard.core.recipe import Recipe
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

__all__ = ["Choice", "merged", "parse_setting"]

_KEY_PART: Final = re.compile(r'"([^"]*)"|([^."]+)')
_CONDITIONS: Final = ("release", "source", "environment", "machine", "variant")
_FIELDS: Final = {field.name.replace("_", "-") for field in fields(Recipe)}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for one recipe."""

    variant: str
    version: str
    settings: Mapping[str, Any]
    machine: str


def parse_setting(text: str, *, where: str = "--set") -> tuple[str, str, Any]:
    """`[COMPONENT/]KEY=VALUE` as component, key and value; the value is TOML where it can be."""
    key, equals, raw = text.partition("=")
    component, slash, rest = key.rpartition("/")
    if not equals or not (rest if slash else key):
        raise UsageError(
            f"{where}: {text!r} is not KEY=VALUE",
            hint="write USE_CUDA=0, version=2.6.0 or source.git.ref=main",
        )
    try:
        value: Any = parse_toml(f"value = {raw}", where=where)["value"]
    except UsageError as error:
        if not isinstance(error.__cause__, tomllib.TOMLDecodeError):
            raise
        value = raw
    # A version such as 2.10 must not become the number 2.1.
    return component, rest, raw if isinstance(value, float) else value


def merged(table: Mapping[str, Any], choice: Choice, *, where: str) -> dict[str, Any]:
    """One recipe table, without the keys that only steer the merging."""
    result = {
        key: copy.deepcopy(value)
        for key, value in table.items()
        if key not in ("variants", "when", "default-variant")
    }
    for overlay in _variant_chain(table, choice.variant, where):
        _overlay(result, overlay)
    if choice.version:
        result["version"] = choice.version
    _apply_settings(result, choice.settings, where)
    for index, conditional in enumerate(table.get("when", ())):
        place = f"{where}: when[{index}]"
        if _holds(conditional.get("if", {}), result, choice, place):
            rest = {key: value for key, value in conditional.items() if key not in ("if", "why")}
            if choice.version:  # what the user said stays
                rest.pop("version", None)
            _overlay(result, rest)
    _apply_settings(result, choice.settings, where)
    return result


def _variant_chain(table: Mapping[str, Any], name: str, where: str) -> list[Mapping[str, Any]]:
    """The overlays of a variant, the ones it extends first."""
    chain: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    while name:
        if name in seen or name not in table.get("variants", {}):
            raise UsageError(f"{where}: variants: {name!r} cannot be extended", hint="mend extends")
        seen.add(name)
        overlay = dict(table["variants"][name])
        name = str(overlay.pop("extends", ""))
        chain.insert(0, overlay)
    return chain


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        present = below.get(key)
        if isinstance(value, Mapping) and isinstance(present, dict):
            _overlay(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            below[key] = present + copy.deepcopy(value)
        else:
            below[key] = copy.deepcopy(value)


def _apply_settings(table: dict[str, Any], settings: Mapping[str, Any], where: str) -> None:
    for key, value in settings.items():
        path = _key_path(key)
        path[0] = path[0].replace("_", "-") if path[0].replace("_", "-") in _FIELDS else path[0]
        if len(path) > 1 and path[0] not in _FIELDS:
            raise UsageError(
                f"--set {key}: there is no table {path[0]!r} in a recipe",
                hint=nearest_hint(path[0], sorted(_FIELDS), what="table"),
            )
        if len(path) == 1 and path[0] not in _FIELDS:
            path = ["options", key]
        place = table
        for part in path[:-1]:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--set {key}: {part!r} is not a table in {where}")
            place = inner
        place[path[-1]] = copy.deepcopy(value)


def _key_path(key: str) -> list[str]:
    """The parts of a dotted key; one in quotes may hold dots: `compile-options."*.c"`."""
    path = [quoted or plain for quoted, plain in _KEY_PART.findall(key)] or [key]
    if len(path) > DEEPEST:
        raise UsageError(
            f"--set {key[:80]!r}...: a key of more than {DEEPEST} parts", hint="give fewer parts"
        )
    return path


def _holds(
    condition: Mapping[str, Any], table: Mapping[str, Any], choice: Choice, where: str
) -> bool:
    for key, wanted in condition.items():
        if key not in _CONDITIONS:
            raise UsageError(
                f"{where}.if: unknown key {key!r}", hint=nearest_hint(key, _CONDITIONS, what="key")
            )
        if key == "release":
            if not _release_in(str(table.get("version", "")), str(wanted), where):
                return False
            continue
        found = {
            "source": _source_kind(table, where),
            "environment": _table_of(table, "environment", where).get("use", "venv"),
            "machine": choice.machine,
            "variant": choice.variant,
        }[key]
        if found not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def _table_of(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{where}: {key} must be a table", hint=f"write [{key}] with keys below it"
        )
    return found


def _source_kind(table: Mapping[str, Any], where: str) -> str:
    source = _table_of(table, "source", where)
    kinds = [key for key in source if key != "use"]
    return str(source.get("use") or (kinds[0] if len(kinds) == 1 else ""))


def _release_in(version: str, wanted: str, where: str) -> bool:
    try:
        allowed = SpecifierSet(wanted, prereleases=True)
    except InvalidSpecifier as error:
        raise UsageError(
            f"{where}.if.release: {wanted!r} is no version range", hint='write ">=2.8,<2.14"'
        ) from error
    try:
        return Version(version) in allowed
    except InvalidVersion:
        # A branch or commit: taken for newer than every release.
        return Version("9999") in allowed

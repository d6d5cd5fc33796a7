"""Two sides of `--settings`: a TOML file, words NAME=VALUE, or packages and variables of a build."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from torchyard.bisect.model import Kind, Setting
from torchyard.core.toml_file import read_toml
from torchyard.errors import NothingToDo, UsageError

__all__ = ["read_settings"]

_TABLES: Final[dict[str, Kind]] = {
    "variables": "variable",
    "packages": "package",
    "values": "value",
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUILD: Final = "build:"
_FORM: Final = 'write "NAME=VALUE NAME=VALUE", build:NAME, or a TOML file with [variables], [packages] or [values]'
_MOST: Final = 1000

Side = dict[tuple[Kind, str], str]


def read_settings(good: str, bad: str) -> tuple[Setting, ...]:
    """Return all settings of both sides, differing or not; raise if none differs."""
    sides = [_side(text) for text in (good, bad)]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))
    settings = tuple(
        Setting(
            kind=kind, name=name, good=sides[0].get((kind, name)), bad=sides[1].get((kind, name))
        )
        for kind, name in keys
    )
    if len(settings) > _MOST:
        raise UsageError(f"--settings: more than {_MOST} settings", hint="remove equal settings")
    if all(one.good == one.bad for one in settings):
        raise NothingToDo("--settings: both sides are the same", hint="give two different sides")
    return settings


def _side(text: str) -> Side:
    if text.startswith(_BUILD):
        return _build_packages(text.removeprefix(_BUILD))
    if text.endswith(".toml"):
        return _file(Path(text))
    side: Side = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--settings: {text!r} cannot be split", why=str(error), hint=_FORM
        ) from error
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise UsageError(f"--settings: {word!r} is not NAME=VALUE", hint=_FORM)
        side["variable", name] = value
    return side


def _file(path: Path) -> Side:
    side: Side = {}
    for table, values in read_toml(path, what="settings file").items():
        kind = _TABLES.get(table)
        if kind is None or not isinstance(values, dict):
            raise UsageError(
                f"{path}: {table!r} is not a table of settings", hint=f"use {', '.join(_TABLES)}"
            )
        for name, value in values.items():
            if isinstance(value, (dict, list)) or not _is_name(kind, name):
                raise UsageError(
                    f"{path}: {table}.{name} is not a setting", hint='write NAME = "VALUE"'
                )
            side[kind, name] = str(value).lower() if isinstance(value, bool) else str(value)
    return side


def _is_name(kind: Kind, name: str) -> bool:
    if kind == "package":
        return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    return _VARIABLE.fullmatch(name) is not None


def _build_packages(name: str) -> Side:
    """Return the packages of a build that come from an index, and its run-time variables."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import find_build

    record = find_build(name, BuildsDirectory.default()).record
    side: Side = {}
    if record is not None:
        side |= {("package", one.name): one.version for one in record.packages if not one.origin}
        side |= {("variable", key): value for key, value in record.variables.items()}
    return side

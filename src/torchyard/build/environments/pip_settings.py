"""Which settings of pip another installer would not see. Names places, never values: they hold secrets.

uv reads neither pip's variables nor its files. Where those lead to the packages, pip must be used.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torchyard.config.toml_file import read_toml
from torchyard.errors import UsageError

__all__ = ["places_of_pip_settings", "uv_has_own_index"]

_SETTINGS: Final = (
    "cert",
    "client-cert",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-index",
    "proxy",
    "trusted-host",
)
_UV_INDEX_VARIABLES: Final = (
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_URL",
)

_UV_INDEX_KEYS: Final = frozenset(
    ("index", "index-url", "extra-index-url", "find-links", "no-index")
)


def uv_has_own_index(environ: Mapping[str, str]) -> bool:
    """Whether the user has told uv itself where packages are, in a variable or in its file."""
    if any(environ.get(name) for name in _UV_INDEX_VARIABLES):
        return True
    config = Path(environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '/'}/.config")
    file = Path(environ.get("UV_CONFIG_FILE") or config / "uv" / "uv.toml")
    try:
        settings = read_toml(file)
    except UsageError:
        return False
    tables = (settings, settings.get("pip"))
    return any(isinstance(table, dict) and not _UV_INDEX_KEYS.isdisjoint(table) for table in tables)


def places_of_pip_settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables (`PIP_FIND_LINKS`) and files (`/etc/pip.conf: index-url`) that lead pip to packages."""
    places = [
        name
        for setting in _SETTINGS
        if environ.get(name := "PIP_" + setting.upper().replace("-", "_"))
    ]
    for file in _files(environ):
        names = _settings_of(file)
        if names:
            places.append(f"{file}: {', '.join(names)}")
    return tuple(places)


def _files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files pip reads, in its order: of the machine, of the user, and the one that is named."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return ()
    home = Path(environ.get("HOME") or "/")
    machine = [Path(folder) / "pip" for folder in environ.get("XDG_CONFIG_DIRS", "").split(":")]
    folders = [
        *(folder for folder in machine if folder.is_absolute()),
        Path("/etc"),
        home / ".pip",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip",
    ]
    files = [folder / "pip.conf" for folder in folders]
    return (*files, Path(named)) if named else tuple(files)


def _settings_of(file: Path) -> list[str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return []
    found = {
        name.replace("_", "-")
        for section in parser.sections()
        if section in ("global", "install", "download")
        for name, value in parser.items(section)
        if value
    }
    return sorted(found.intersection(_SETTINGS))

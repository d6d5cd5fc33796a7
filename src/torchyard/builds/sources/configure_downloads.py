"""What the configure step of a release would download, fetched in the fetch step instead.

Reads configure_downloads.toml. The versions are read from files of the source tree, so that they are
those of the release.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal

from torchyard.builds.cmake_cache import cmake_bool, cmake_value
from torchyard.builds.compatibility import parse_version, version_in_range
from torchyard.builds.plan import Action, WriteFile
from torchyard.builds.recipe import Recipe
from torchyard.builds.sources.fetch_plan import on_this_machine
from torchyard.core.records import decode

_TABLE: Final = Path(__file__).with_name("configure_downloads.toml")
_AOTRITON: Final = Path(__file__).with_name("download_aotriton.py")
_CLONE: Final = """\
folder=$1 url=$2 optional=$3; shift 3
for pin; do
  [ -f "$pin" ] || continue
  if [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then echo "$0: $folder is in the source tree"; exit; fi
  tag=$(cat "$pin")
  case $tag in
    ''|-*|*[!A-Za-z0-9._/+-]*) echo "$pin does not contain a tag" >&2; exit 1 ;;
  esac
  rm -rf "$folder"
  GIT_TERMINAL_PROMPT=0 git clone -q --depth 1 --branch "$tag" -- "$url" "$folder" && exit
  rm -rf "$folder"
  if [ -n "$optional" ]; then echo "$0: not downloaded; $optional"; exit; fi
  exit 1
done
echo "$0: not pinned by this tree, so not downloaded"
"""
_BRANCH: Final = "9999"
"""A branch counts as newer than all releases."""


@dataclass(frozen=True, kw_only=True)
class ConfigureDownload:
    """One project that a build would download; the keys of the table."""

    name: str
    project: str
    releases: str
    kind: Literal["git", "aotriton"]
    url: str
    folder: str
    """Where the build looks for it, below the source tree."""
    cmake_file: str
    why: str
    pins: tuple[str, ...] = ()
    """Files of the source tree with the tag to check out; the first one that exists is used."""
    optional: str = ""
    """When it is needed, if it may also be missing; empty if the build fails without it."""
    variable: str = ""
    """Variable that names the folder to the build; empty if the build finds it by itself."""
    unless_off: tuple[str, ...] = ()
    unless_all_off: tuple[str, ...] = ()
    unless_set: tuple[str, ...] = ()
    only_on: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Table:
    format: int
    download: tuple[ConfigureDownload, ...]


@cache
def all_configure_downloads() -> tuple[ConfigureDownload, ...]:
    """Return the whole table."""
    text = _TABLE.read_text(encoding="utf-8")
    return decode(_Table, tomllib.loads(text), where=_TABLE.name).download


def configure_downloads(recipe: Recipe) -> tuple[ConfigureDownload, ...]:
    """Return what the build of a recipe would download, with its options and variables."""
    settings = {
        **recipe.environment.variables,
        **{name: cmake_value(value) for name, value in recipe.options.items()},
    }
    release = recipe.version if parse_version(recipe.version) else _BRANCH

    def on(name: str) -> bool:
        return settings.get(name, "") != "" and cmake_bool(settings[name]) is not False

    def off(name: str) -> bool:
        return cmake_bool(settings.get(name, "ON")) is False

    return tuple(
        item
        for item in all_configure_downloads()
        if item.project == recipe.known_release
        and version_in_range(item.releases, release)
        and not any(off(name) for name in item.unless_off)
        and not (item.unless_all_off and all(off(name) for name in item.unless_all_off))
        and not any(on(name) for name in item.unless_set)
        and all(on(name) for name in item.only_on)
        and all(settings.get(name, "") in values for name, values in item.options.items())
    )


def download_actions(recipe: Recipe, tree: str, programs: Path) -> tuple[Action, ...]:
    """Return the actions that download everything into a source tree; empty if there is nothing."""
    actions: list[Action] = []
    version = recipe.environment.cuda or "12"
    names = {"{cuda}": version.partition(".")[0], "{cuda-version}": "".join(version.split(".")[:2])}
    rocm = recipe.environment.variables.get("ROCM_PATH", "/opt/rocm")
    for item in configure_downloads(recipe):
        pins = dict.fromkeys(
            re.sub(r"\{[^}]*\}", lambda match: names[match.group()], pin) for pin in item.pins
        )
        argv = ("sh", "-c", _CLONE, item.name, item.folder, item.url, item.optional, *pins)
        if item.kind == "aotriton":
            program = str(programs / _AOTRITON.name)
            text = _AOTRITON.read_text(encoding="utf-8")
            actions.append(WriteFile(path=program, text=text, fingerprinted=False))
            argv = ("python3", program, ".", item.folder, item.cmake_file, item.url, rocm)
        actions.append(replace(on_this_machine(*argv), folder=tree))
    return tuple(actions)


def download_variables(recipe: Recipe, tree: str) -> dict[str, str]:
    """Return the variables that name the downloaded folders to the build."""
    return {
        item.variable: f"{tree}/{item.folder}"
        for item in configure_downloads(recipe)
        if item.variable
    }

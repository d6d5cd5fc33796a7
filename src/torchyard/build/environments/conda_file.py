"""The files that describe a conda environment: environment.yml, or pixi.toml for pixi. No I/O."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.errors import UsageError

__all__ = ["CondaPackage", "conda_platform", "environment_yaml", "parse_package", "pixi_toml"]

_PACKAGE: Final = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9][A-Za-z0-9_.:/-]*?)::)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"\s*(?P<version>[=<>!~][=<>!~|,.*+A-Za-z0-9_ -]*|[0-9*][|,.*+A-Za-z0-9_<>=! -]*)?"
)
_ANACONDA_MAIN: Final = "main"
"""What pixi, which does not know the name `defaults`, calls the channel that stands behind it."""
_WRITTEN_BY: Final = (
    "# Written by torchyard from the recipe; a change here is lost at the next build."
)


@dataclass(frozen=True, kw_only=True)
class CondaPackage:
    """One wanted package: `nvidia/label/cuda-12.2.0::cuda-toolkit`, `cmake<3.30`."""

    name: str
    version: str = ""
    """As written: `=10.3.0`, `<3.30`, `>=1,<2`."""
    channel: str = ""

    @property
    def text(self) -> str:
        """As conda reads it."""
        return (f"{self.channel}::" if self.channel else "") + self.name + self.version


def parse_package(text: str, *, where: str) -> CondaPackage:
    """The package that a recipe names; raises UsageError for what no conda would understand."""
    found = _PACKAGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{where}: {text!r} names no conda package",
            hint="write NAME, NAME=VERSION, NAME>=VERSION,<VERSION or CHANNEL::NAME",
        )
    version = (found["version"] or "").replace(" ", "")
    if version and version[0].isdigit():
        version = f"={version}"
    return CondaPackage(name=found["name"], version=version, channel=found["channel"] or "")


def conda_platform(machine: str = "") -> str:
    """The name conda has for this kind of machine, such as linux-64."""
    names = {"x86_64": "linux-64", "amd64": "linux-64", "arm64": "linux-aarch64"}
    machine = (machine or platform.machine()).lower()
    return names.get(machine, f"linux-{machine}")


def environment_yaml(channels: Sequence[str], packages: Sequence[CondaPackage]) -> str:
    """For conda, mamba and micromamba.

    A channel that one package names comes last in the list: it is looked at for that package, and
    takes nothing over from the others. Without `defaults` in the list, `nodefaults` keeps the
    user's own configuration from adding it.
    """
    listed = _all_channels(channels, packages)
    if "defaults" not in listed:
        listed = (*listed, "nodefaults")
    lines = [_WRITTEN_BY, "channels:"]
    lines += [f"  - {_quoted(channel)}" for channel in listed]
    lines += ["dependencies:"]
    lines += [f"  - {_quoted(package.text)}" for package in packages]
    return "\n".join(lines) + "\n"


def pixi_toml(
    name: str, channels: Sequence[str], packages: Sequence[CondaPackage], *, machine: str = ""
) -> str:
    """For pixi, whose package lines are keys and whose channels must all be listed."""
    listed = tuple(_pixi_channel(channel) for channel in _all_channels(channels, packages))
    lines = [
        _WRITTEN_BY,
        "[workspace]",
        f"name = {_quoted(name)}",
        f"channels = [{', '.join(_quoted(channel) for channel in listed)}]",
        f"platforms = [{_quoted(conda_platform(machine))}]",
        "",
        "[dependencies]",
    ]
    lines += [f"{_quoted(package.name)} = {_pixi_value(package)}" for package in packages]
    return "\n".join(lines) + "\n"


def _all_channels(channels: Sequence[str], packages: Sequence[CondaPackage]) -> tuple[str, ...]:
    named = (package.channel for package in packages if package.channel)
    return tuple(dict.fromkeys((*channels, *named)))


def _pixi_channel(channel: str) -> str:
    return _ANACONDA_MAIN if channel == "defaults" else channel


def _pixi_value(package: CondaPackage) -> str:
    version, build = _pixi_version(package.version)
    if not package.channel and not build:
        return _quoted(version)
    fields = [f"version = {_quoted(version)}"]
    if build:
        fields.append(f"build = {_quoted(build)}")
    if package.channel:
        fields.append(f"channel = {_quoted(_pixi_channel(package.channel))}")
    return "{ " + ", ".join(fields) + " }"


def _pixi_version(version: str) -> tuple[str, str]:
    """Version and build for pixi: to conda, `=1.2` means any 1.2.x, and `=1.2=b` is exactly 1.2."""
    single = re.fullmatch(r"=([^=<>!~|,]+)(?:=([^=]+))?", version)
    if single is None:
        return version or "*", ""
    number, build = single[1], single[2] or ""
    if build:
        return f"=={number}", build
    return (number if number.endswith("*") else f"{number}.*"), ""


def _quoted(text: str) -> str:
    """A JSON string is a string in YAML and in TOML as well."""
    return json.dumps(text)

"""A conda environment, created by pixi, micromamba, mamba, conda or the library py-rattler.

It is described by an environment.yml, or by a pixi.toml for pixi.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from torchyard.builds.environments.base_interpreter import find_program
from torchyard.builds.environments.model import (
    COMPONENT,
    EnvironmentPlan,
    EnvironmentRequest,
    base_variables,
    ordered_variables,
    packages_steps,
    pip_installer,
    required_packages,
)
from torchyard.builds.plan import Action, Command, Step, Variables, WriteFile
from torchyard.errors import UsageError

_PACKAGE: Final = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9][A-Za-z0-9_.:/-]*?)::)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"\s*(?P<version>[=<>!~][=<>!~|,.*+A-Za-z0-9_ -]*|[0-9*][|,.*+A-Za-z0-9_<>=! -]*)?"
)
_REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ANACONDA_MAIN: Final = "main"
"""Name of the channel `defaults` in pixi."""
_WRITTEN_BY: Final = (
    "# Written by torchyard from the recipe; a change here is lost at the next build."
)


@dataclass(frozen=True, kw_only=True)
class CondaPackage:
    """One package specification: `nvidia/label/cuda-12.2.0::cuda-toolkit`, `cmake<3.30`."""

    name: str
    version: str = ""
    """As written: `=10.3.0`, `<3.30`, `>=1,<2`."""
    channel: str = ""

    @property
    def text(self) -> str:
        """The specification in conda's syntax."""
        return (f"{self.channel}::" if self.channel else "") + self.name + self.version


def parse_package(text: str, *, where: str) -> CondaPackage:
    """Parse a package specification; raise UsageError if it is invalid."""
    match = _PACKAGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{where}: {text!r} is not a conda package specification",
            hint="write NAME, NAME=VERSION, NAME>=VERSION,<VERSION or CHANNEL::NAME",
        )
    version = (match["version"] or "").replace(" ", "")
    if version and version[0].isdigit():
        version = f"={version}"
    return CondaPackage(name=match["name"], version=version, channel=match["channel"] or "")


def conda_platform(machine: str = "") -> str:
    """Return conda's platform name of this machine, such as linux-64."""
    names = {"x86_64": "linux-64", "amd64": "linux-64", "arm64": "linux-aarch64"}
    machine = (machine or platform.machine()).lower()
    return names.get(machine, f"linux-{machine}")


def environment_yaml(channels: Sequence[str], packages: Sequence[CondaPackage]) -> str:
    """Return the environment file for conda, mamba and micromamba.

    Channels of single packages come last, so that they do not take precedence for other packages.
    Without `defaults` in the list, `nodefaults` keeps the user's configuration from adding it.
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
    """Return the manifest for pixi."""
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
    """Return version and build for pixi; in conda, `=1.2` is any 1.2.x, `=1.2=b` exactly 1.2."""
    single = re.fullmatch(r"=([^=<>!~|,]+)(?:=([^=]+))?", version)
    if single is None:
        return version or "*", ""
    number, build = single[1], single[2] or ""
    if build:
        return f"=={number}", build
    return (number if number.endswith("*") else f"{number}.*"), ""


def _quoted(text: str) -> str:
    """Quote a string as JSON, which is valid in YAML and TOML, too."""
    return json.dumps(text)


TOOLS: Final = ("pixi", "micromamba", "mamba", "conda")
"""In order of preference, fastest first."""
_RATTLER: Final = "py-rattler"
_RATTLER_PROGRAM: Final = str(Path(__file__).resolve().with_name("rattler_client.py"))
HOW_TO_INSTALL: Final = (
    "pip install py-rattler (in the environment of Torchyard), or install Miniforge: curl -LO"
    " https://github.com/conda-forge/miniforge/releases/latest/download/Miniforge3-Linux-$(uname"
    " -m).sh && sh Miniforge3-Linux-$(uname -m).sh -b -p ~/miniforge3 && export"
    " PATH=~/miniforge3/bin:$PATH"
)
"""No distribution has a package of conda."""

_DEFAULT_CHANNELS: Final = ("conda-forge",)
COMPILER_TRIPLES: Final = {
    "linux-64": "x86_64-conda-linux-gnu",
    "linux-aarch64": "aarch64-conda-linux-gnu",
    "linux-ppc64le": "powerpc64le-conda-linux-gnu",
}
_CUDA_PACKAGES: Final = ("cuda", "cuda-toolkit", "cuda-nvcc", "cuda-compiler")


def plan_conda(request: EnvironmentRequest) -> EnvironmentPlan:
    """Return the plan: write the environment file, create `env` from it, then run pip."""
    if request.table.base:
        raise UsageError(
            f"{request.where}.base: a conda environment cannot have a base",
            hint='use = "venv" creates an environment with that base',
        )
    packages = _packages(request)
    request, owned = _without_conda_packages(request, packages)
    tool, path = _tool(request)
    prefix = str(request.folder / "env")
    python = f"{prefix}/bin/python"
    variables = _variables(request, packages, prefix)
    installer = pip_installer(python)
    notes = [f"the environment is created by {tool}"] if path else []
    if owned:
        notes.append(f"installed by conda, not by pip: {', '.join(owned)}")
    if any(package.channel == "defaults" for package in packages):
        notes.append("the channel `defaults` is subject to Anaconda's terms of use")
    return EnvironmentPlan(
        kind="conda",
        python=python,
        steps=(
            _python_step(request, tool, path or tool, packages, prefix),
            *packages_steps(request, installer, variables),
        ),
        variables=variables,
        missing=() if path else (f"one of {', '.join(TOOLS)} ({HOW_TO_INSTALL})",),
        notes=tuple(notes),
    )


def _tool(request: EnvironmentRequest) -> tuple[str, str]:
    """Return name and path of the tool; `conda` without a path if none is installed.

    py-rattler is a library: the interpreter of Torchyard runs it.
    """
    for name in TOOLS:
        path = find_program(name, request.environ)
        if path:
            return name, path
    if importlib.util.find_spec("rattler") is not None:
        return _RATTLER, sys.executable
    return "conda", ""


def _without_conda_packages(
    request: EnvironmentRequest, packages: Sequence[CondaPackage]
) -> tuple[EnvironmentRequest, tuple[str, ...]]:
    """Return the request without the pip requirements that conda installs, and their names.

    Each tool has one owner: pip would install another version over that of conda.
    """
    names = {canonicalize_name(package.name) for package in packages}
    pip_packages, owned = [], []
    for text in required_packages(request):
        match = _REQUIREMENT_NAME.match(text)
        name = canonicalize_name(match[0]) if match else ""
        if name in names:
            owned.append(name)
        else:
            pip_packages.append(text)
    table = replace(request.table, venv=replace(request.table.venv, packages=()))
    return replace(request, table=table, packages=tuple(pip_packages)), tuple(dict.fromkeys(owned))


def _packages(request: EnvironmentRequest) -> tuple[CondaPackage, ...]:
    where = f"{request.where}.conda.packages"
    packages = [parse_package(text, where=where) for text in request.table.conda.packages]
    names = [package.name for package in packages]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{where}: duplicate package {name}",
                hint=f"remove the other one: --set environment.conda.packages-={name}",
            )
    if "python" not in names:
        packages.insert(0, _python_package(request))
    elif request.table.python:
        raise UsageError(
            f"{request.where}.python: conda.packages has python, too",
            hint="remove one of them",
        )
    if "pip" not in names:
        packages.append(CondaPackage(name="pip"))
    return tuple(packages)


def _python_package(request: EnvironmentRequest) -> CondaPackage:
    version = request.table.python
    if version and not version.replace(".", "").isdigit():
        raise UsageError(
            f"{request.where}.python: {version!r} is not a version",
            hint="conda installs its own Python: give a version, such as 3.12",
        )
    return CondaPackage(name="python", version=f"={version}" if version else request.python_range)


def _python_step(
    request: EnvironmentRequest,
    tool: str,
    path: str,
    packages: Sequence[CondaPackage],
    prefix: str,
) -> Step:
    """Return the step that creates the environment from scratch, without earlier packages."""
    channels = request.table.conda.channels or _DEFAULT_CHANNELS
    remove = Command(argv=("rm", "-rf", "--", prefix))
    actions: tuple[Action, ...]
    if tool == "pixi":
        file = str(request.folder / "pixi.toml")
        actions = (
            WriteFile(path=file, text=pixi_toml(request.folder.name, channels, packages)),
            remove,
            Command(argv=(path, "install", "--manifest-path", file)),
            # pixi has a fixed location for environments; other steps expect `env`.
            Command(argv=("ln", "-sfnT", "--", ".pixi/envs/default", prefix)),
        )
    else:
        file = str(request.folder / "environment.yml")
        verbs = {"micromamba": ("create", "--yes"), _RATTLER: (_RATTLER_PROGRAM,)}
        actions = (
            WriteFile(path=file, text=environment_yaml(channels, packages)),
            remove,
            Command(
                argv=(path, *verbs.get(tool, ("env", "create")), "--file", file, "--prefix", prefix)
            ),
        )
    return Step(
        name=f"{COMPONENT}/python",
        component=COMPONENT,
        title=f"create the conda environment with {tool}",
        actions=(*actions, *_rocm_headers(request.table.include, request.table.variables, prefix)),
        variables=(
            *base_variables(request.environ),
            ("CONDA_ALWAYS_YES", "true"),
            ("MAMBA_ALWAYS_YES", "true"),
        ),
        network=True,
        creates=(f"{prefix}/bin/python", file),
        inputs=_rocm_inputs(request.table.include, request.table.variables, prefix),
    )


def _variables(
    request: EnvironmentRequest, packages: Sequence[CondaPackage], prefix: str
) -> Variables:
    """Return the variables: the environment precedes the system for programs, headers, libraries.

    `include` and `libraries` of the recipe (ROCm) precede those of the environment.
    """
    return ordered_variables(
        request,
        programs=(f"{prefix}/bin",),
        headers=(f"{prefix}/include",),
        libraries=(f"{prefix}/lib",),
        loaded=(f"{prefix}/lib",),
        prefixes=(prefix,),
        more=(
            ("CONDA_PREFIX", prefix),
            ("PYTHONNOUSERSITE", "1"),
            *_compilers(packages, prefix),
        ),
    )


def _compilers(packages: Sequence[CondaPackage], prefix: str) -> Variables:
    """Return the variables that activating gcc_linux-64 and gxx_linux-64 would set."""
    names = {package.name for package in packages}
    variables: dict[str, str] = {}
    for platform_name, triple in COMPILER_TRIPLES.items():
        if f"gcc_{platform_name}" in names:
            variables["CC"] = f"{prefix}/bin/{triple}-gcc"
        if f"gxx_{platform_name}" in names:
            variables["CXX"] = f"{prefix}/bin/{triple}-g++"
    if "CXX" in variables and names.intersection(_CUDA_PACKAGES):
        variables["CUDAHOSTCXX"] = variables["CXX"]
    return tuple(variables.items())


def _rocm_headers(
    include: Sequence[str], variables: Mapping[str, str], prefix: str
) -> tuple[Action, ...]:
    """Return actions that copy ROCm's headers if the recipe has ENV/rocm-include.

    hipcc moves -I ROCM/include after all other folders, so that conda's thrust would be found
    before ROCm's. It does not move the copy (ROCm/HIP issue 3587).
    """
    copy = f"{prefix}/rocm-include"
    if copy not in include:
        return ()
    return (
        Command(argv=("rm", "-rf", "--", copy)),
        Command(argv=("cp", "-R", "--", f"{_rocm(variables)}/include", copy)),
    )


def _rocm_inputs(
    include: Sequence[str], variables: Mapping[str, str], prefix: str
) -> tuple[tuple[str, str], ...]:
    """Return the version of ROCm: a change means that the headers must be copied again."""
    if f"{prefix}/rocm-include" not in include:
        return ()
    try:
        version = Path(_rocm(variables), ".info", "version").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        version = "not found"
    return (("rocm", version),)


def _rocm(variables: Mapping[str, str]) -> str:
    return variables.get("ROCM_PATH", "/opt/rocm").rstrip("/")

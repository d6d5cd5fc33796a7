"""What an image starts from: base image, packages of its system, program for conda. No I/O.

The names of images and addresses of installers here are assumptions about the outside world; each is
said in the export, and each can be replaced by naming a base image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from torchyard.build.coupling import debian_toolchain
from torchyard.build.environments.conda import TOOLS
from torchyard.build.export.contract import ExportFacts
from torchyard.core.build_plan import AptSources, Command, Plan, SdistDownload, Step
from torchyard.core.recipe import Recipe, Scalar
from torchyard.errors import UsageError

__all__ = ["ImageBase", "choose_base", "conda_tool", "gpu_of", "root_of", "system_packages"]

_IMAGE_NAME: Final = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_PYTHON: Final = re.compile(r"python(3\.\d+)")
_DEFAULT_SUITE: Final = "trixie"
_SUITES: Final = ("trixie", "bookworm")
_CUDA_IMAGE: Final = "nvidia/cuda:12.8.1-devel-ubuntu24.04"
_ROCM_IMAGE: Final = "rocm/dev-ubuntu-24.04:6.4.4-complete"

CONDA_PROGRAMS: Final = {
    "pixi": "/usr/local/bin/pixi",
    "micromamba": "/usr/local/bin/micromamba",
    "mamba": "/opt/conda/bin/mamba",
    "conda": "/opt/conda/bin/conda",
}
"""Where the installers put each program."""
_MINIFORGE: Final = (
    (
        "curl -fL -o /tmp/miniforge.sh https://github.com/conda-forge/miniforge/releases/latest/download/"
        'Miniforge3-Linux-"$(uname -m)".sh'
    ),
    "bash /tmp/miniforge.sh -b -p /opt/conda",
    "rm /tmp/miniforge.sh",
)
CONDA_INSTALLERS: Final = {
    "pixi": (
        (
            "curl -fL https://github.com/prefix-dev/pixi/releases/latest/download/"
            'pixi-"$(uname -m)"-unknown-linux-musl.tar.gz | tar -xz -C /usr/local/bin'
        ),
    ),
    "micromamba": (
        'platform=linux-"$(uname -m | sed s/x86_64/64/)"',
        (
            'curl -fL "https://micro.mamba.pm/api/micromamba/$platform/latest" |'
            " tar -xj -C /usr/local bin/micromamba"
        ),
    ),
    "mamba": _MINIFORGE,
    "conda": _MINIFORGE,
}
"""Statements of a shell; each takes the newest release."""


@dataclass(frozen=True, kw_only=True)
class ImageBase:
    """The image that the build starts from."""

    name: str
    why: str
    has_python: bool = False
    """Whether it brings a Python of its own, so that none is installed."""


def choose_base(plan: Plan, facts: ExportFacts) -> ImageBase:
    """The image that fits the plan's environment, unless the user names one."""
    if facts.base_image:
        if not _IMAGE_NAME.fullmatch(facts.base_image):
            raise UsageError(
                f"{facts.base_image!r} names no image",
                hint="give a name such as debian:trixie-slim",
            )
        return ImageBase(name=facts.base_image, why="named by you; it must have apt-get")
    root, suite = root_of(plan)
    if root:
        why = f"the plan builds in a Debian {suite} of its own; here the image is that Debian"
        return ImageBase(name=f"debian:{suite}-slim", why=why)
    outside = _system_toolkits(plan)
    if "ROCM_PATH" in outside:
        why = "assumed to have ROCm in /opt/rocm; name another to build for another ROCm"
        return ImageBase(name=_ROCM_IMAGE, why=why)
    if "CUDA_HOME" in outside:
        why = "assumed to have the CUDA toolkit in /usr/local/cuda; name another for another CUDA"
        return ImageBase(name=_CUDA_IMAGE, why=why)
    version = _python_version(plan)
    if not version:
        return ImageBase(name=f"debian:{_DEFAULT_SUITE}-slim", why="a current Debian")
    for suite in _SUITES:
        if debian_toolchain(suite).get("python", "").startswith(f"{version}."):
            why = f"its Python is {version}, as in the plan"
            return ImageBase(name=f"debian:{suite}-slim", why=why)
    why = f"Python {version} as in the plan, on Debian {_DEFAULT_SUITE}"
    return ImageBase(name=f"python:{version}-slim-{_DEFAULT_SUITE}", why=why, has_python=True)


def root_of(plan: Plan) -> tuple[str, str]:
    """The plan's root folder and its suite; nothing where it has none."""
    root = next((step.root for step in plan.steps if step.root), "")
    for step in plan.steps:
        for action in step.actions:
            # The command that makes the root names it, and the suite behind it.
            if root and isinstance(action, Command) and not step.root and root in action.argv[:-1]:
                return root, action.argv[action.argv.index(root) + 1]
    return root, _DEFAULT_SUITE if root else ""


def conda_tool(step: Step) -> tuple[str, str]:
    """Name and path of the conda program that the step starts; nothing where it starts none."""
    for action in step.actions:
        if isinstance(action, Command) and PurePosixPath(action.argv[0]).name in TOOLS:
            return PurePosixPath(action.argv[0]).name, action.argv[0]
    return "", ""


def gpu_of(plan: Plan) -> str:
    """`cuda`, `rocm` or nothing: what the built thing wants to find at run time."""
    recipes = [part.recipe for part in plan.components]
    if any(_is_on(recipe, "USE_ROCM") for recipe in recipes):
        return "rocm"
    if any(_is_on(recipe, "USE_CUDA") or _is_on(recipe, "FORCE_CUDA") for recipe in recipes):
        return "cuda"
    return ""


def system_packages(plan: Plan, base: ImageBase) -> tuple[str, ...]:
    """Debian packages the steps need, apart from those that a step installs itself."""
    names = ["ca-certificates", "curl", "git", "patch", "unzip", "xz-utils"]
    root, _ = root_of(plan)
    conda = any(conda_tool(step)[0] for step in plan.steps)
    if not root:
        names += ["build-essential", "cmake", "ninja-build", "pkg-config"]
        python = any(part.python for part in plan.components)
        if python and not conda and not base.has_python:
            names += ["python3-dev", "python3-venv"]
    actions = [action for step in plan.steps for action in step.actions]
    if any(isinstance(action, AptSources) for action in actions):
        names.append("dpkg-dev")
    sdists = any(isinstance(action, SdistDownload) for action in actions)
    if sdists and not all(part.python for part in plan.components):
        names.append("python3-pip")
    if conda:
        names.append("bzip2")
    if any(_is_on(part.recipe, "USE_MPI") for part in plan.components):
        names += ["libopenmpi-dev", "openmpi-bin"]
    return tuple(sorted(names))


def _system_toolkits(plan: Plan) -> set[str]:
    """Names of the variables that lead to a GPU toolkit outside the build's own folder."""
    return {name for name, value in _all_variables(plan) if not value.startswith(plan.folder)} & {
        "CUDA_HOME",
        "ROCM_PATH",
    }


def _all_variables(plan: Plan) -> Iterator[tuple[str, str]]:
    for step in plan.steps:
        yield from step.variables


def _python_version(plan: Plan) -> str:
    """`3.12` of the interpreter that the virtual environment is made with, where it is known."""
    for step in plan.steps:
        said = dict(step.inputs).get("python", "").rpartition(" ")[2].split(".")
        if len(said) > 1 and all(part.isdigit() for part in said[:2]):
            return ".".join(said[:2])
        for action in step.actions:
            if isinstance(action, Command) and action.argv[1:3] == ("-m", "venv"):
                # A version that this machine does not have is planned by its bare name.
                named = _PYTHON.fullmatch(PurePosixPath(action.argv[0]).name)
                if named:
                    return named[1]
    return ""


def _is_on(recipe: Recipe, option: str) -> bool:
    value: Scalar = recipe.options.get(option, False)
    return str(value).lower() in ("1", "on", "yes", "true", "y")

"""Inputs of a container image: base image, system packages, conda, local files. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.compatibility import debian_toolchain
from torchyard.builds.environments.conda import TOOLS
from torchyard.builds.environments.model import SYSTEM_PATH, system_gcc
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import AptSources, Command, Component, Plan, SdistDownload, Step
from torchyard.builds.recipe import Recipe, SourceTable
from torchyard.builds.sources import used_source_kind
from torchyard.builds.sources.fetch_plan import local_path
from torchyard.errors import UsageError

_IMAGE_NAME: Final = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_PYTHON: Final = re.compile(r"python(3\.\d+)")
_DEFAULT_SUITE: Final = "trixie"
_SUITES: Final = ("trixie", "bookworm")
_CUDA_IMAGE: Final = "nvidia/cuda:{}-devel-ubuntu24.04"
_RELEASE_DOTS: Final = 2
_ROCM_IMAGE: Final = "rocm/dev-ubuntu-24.04:6.4.4-complete"

CONDA_PROGRAMS: Final = {
    "pixi": "/usr/local/bin/pixi",
    "micromamba": "/usr/local/bin/micromamba",
    "mamba": "/opt/conda/bin/mamba",
    "conda": "/opt/conda/bin/conda",
}
"""Path of each program after installation."""
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
"""Shell statements; each installs the newest release."""


@dataclass(frozen=True, kw_only=True)
class ImageBase:
    """The image that the build starts from."""

    name: str
    why: str
    has_python: bool = False
    """Whether it contains Python, so that none is installed."""


def choose_base(plan: Plan, facts: ExportFacts) -> ImageBase:
    """Return the requested base image, or one that matches the environment of the plan."""
    if facts.base_image:
        if not _IMAGE_NAME.fullmatch(facts.base_image):
            raise UsageError(
                f"{facts.base_image!r} is not the name of an image",
                hint="use a name such as debian:trixie-slim",
            )
        return ImageBase(name=facts.base_image, why="requested; it must have apt-get")
    root, suite = root_of(plan)
    if root:
        why = f"replaces the Debian {suite} root folder of the plan"
        return ImageBase(name=f"debian:{suite}-slim", why=why)
    outside = _system_toolkits(plan)
    if "ROCM_PATH" in outside:
        why = "assumed to have ROCm in /opt/rocm; choose another image for another ROCm"
        return ImageBase(name=_ROCM_IMAGE, why=why)
    if "CUDA_HOME" in outside:
        why = "assumed to have CUDA in /usr/local/cuda; choose another image for another CUDA"
        versions = (part.recipe.environment.cuda for part in plan.components)
        version = next((item for item in versions if item.count(".") == _RELEASE_DOTS), "12.8.1")
        return ImageBase(name=_CUDA_IMAGE.format(version), why=why)
    version = _python_version(plan)
    if not version:
        return ImageBase(name=f"debian:{_DEFAULT_SUITE}-slim", why="a current Debian")
    for suite in _SUITES:
        tools = debian_toolchain(suite)
        too_old = int(_gcc(plan) or 0) > int(tools.get("gcc", "0").partition(".")[0])
        if tools.get("python", "").startswith(f"{version}.") and not too_old:
            why = f"its Python is {version}, as in the plan"
            return ImageBase(name=f"debian:{suite}-slim", why=why)
    why = f"Python {version} as in the plan, on Debian {_DEFAULT_SUITE}"
    return ImageBase(name=f"python:{version}-slim-{_DEFAULT_SUITE}", why=why, has_python=True)


def root_of(plan: Plan) -> tuple[str, str]:
    """Return the root folder of a plan and its suite; empty if it has none."""
    root = next((step.root for step in plan.steps if step.root), "")
    for step in plan.steps:
        for action in step.actions:
            # The command that creates the root has it as an argument, followed by the suite.
            if root and isinstance(action, Command) and not step.root and root in action.argv[:-1]:
                return root, action.argv[action.argv.index(root) + 1]
    return root, _DEFAULT_SUITE if root else ""


def areas_of(plan: Plan) -> tuple[str, ...]:
    """Return the archive areas of a plan's root folder; empty means those of the machine's apt."""
    tables = [part.recipe.environment for part in plan.components]
    areas = (table.debian_root.archive_areas for table in tables if root_of(plan)[0])
    return tuple(dict.fromkeys(area for names in areas for area in names))


def conda_tool(step: Step) -> tuple[str, str]:
    """Return name and path of the conda program that a step runs; empty if none."""
    for action in step.actions:
        if isinstance(action, Command) and PurePosixPath(action.argv[0]).name in TOOLS:
            return PurePosixPath(action.argv[0]).name, action.argv[0]
    return "", ""


def gpu_of(plan: Plan) -> str:
    """Return the GPU platform that the result needs at run time: `cuda`, `rocm` or empty."""
    recipes = [part.recipe for part in plan.components]
    if any(_is_on(recipe, "USE_ROCM") for recipe in recipes):
        return "rocm"
    if any(_is_on(recipe, "USE_CUDA") or _is_on(recipe, "FORCE_CUDA") for recipe in recipes):
        return "cuda"
    return ""


def system_packages(plan: Plan, base: ImageBase) -> tuple[str, ...]:
    """Return the Debian packages that the steps need, except those that a step installs."""
    names = ["ca-certificates", "curl", "git", "patch", "unzip", "xz-utils"]
    root, _ = root_of(plan)
    conda = any(conda_tool(step)[0] for step in plan.steps)
    if not root:
        names += ["build-essential", "cmake", "ninja-build", "pkg-config"]
        python = any(part.python for part in plan.components)
        if python and not conda and not base.has_python:
            names += ["python3-dev", "python3-venv"]
    actions = [action for step in plan.steps for action in step.actions]
    if any(isinstance(action, Command) and action.argv[0] == "python3" for action in actions):
        names.append("python3")
    if any(isinstance(action, AptSources) for action in actions):
        names.append("dpkg-dev")
    sdists = any(isinstance(action, SdistDownload) for action in actions)
    if sdists and not all(part.python for part in plan.components):
        names.append("python3-pip")
    if conda:
        names.append("bzip2")
    if any(_is_on(part.recipe, "USE_MPI") for part in plan.components):
        names += ["libopenmpi-dev", "openmpi-bin"]
    names += extra_packages(plan)
    if gcc := _gcc(plan):
        names += system_gcc(gcc)
    return tuple(sorted(set(names)))


def extra_packages(plan: Plan) -> tuple[str, ...]:
    """Return the Debian packages that recipes add to an image."""
    parts = (part.recipe.environment.system_packages for part in plan.components)
    return tuple(dict.fromkeys(name for names in parts for name in names))


def _gcc(plan: Plan) -> str:
    """Return the major version of the system's gcc that the plan names; empty if it names none."""
    compilers = {value for step in plan.steps for name, value in step.variables if name == "CC"}
    return next((name[4:] for name in sorted(compilers) if re.fullmatch(r"gcc-\d+", name)), "")


def _system_toolkits(plan: Plan) -> set[str]:
    """Return the variables that refer to a GPU toolkit outside the folder of the build."""
    variables = [pair for step in plan.steps for pair in step.variables]
    outside = {name for name, value in variables if not value.startswith(plan.folder)}
    return outside & {"CUDA_HOME", "ROCM_PATH"}


def _python_version(plan: Plan) -> str:
    """Return the Python version of the virtual environment, such as `3.12`; empty if unknown."""
    for step in plan.steps:
        version = dict(step.inputs).get("python", "").rpartition(" ")[2].split(".")
        if len(version) > 1 and all(part.isdigit() for part in version[:2]):
            return ".".join(version[:2])
        for action in step.actions:
            if isinstance(action, Command) and action.argv[1:3] == ("-m", "venv"):
                # A version that this machine does not have appears as a bare name.
                named = _PYTHON.fullmatch(PurePosixPath(action.argv[0]).name)
                if named:
                    return named[1]
    return ""


def _is_on(recipe: Recipe, option: str) -> bool:
    return cmake_bool(str(recipe.options.get(option, ""))) is True


@dataclass(frozen=True, kw_only=True)
class LocalInput:
    """A file or folder of this machine."""

    path: str
    name: str
    """Its name in the folder `local`, next to the definition and inside the image."""


def local_inputs(plan: Plan) -> tuple[LocalInput, ...]:
    """Return the folders, archives and repositories of this machine, and patches of recipes."""
    inputs: dict[str, LocalInput] = {}
    for component in plan.components:
        for path, name in _paths(component):
            inputs.setdefault(path, LocalInput(path=path, name=name))
    return tuple(inputs.values())


def _paths(component: Component) -> Iterator[tuple[str, str]]:
    recipe = component.recipe
    source = _source_path(recipe.source)
    if source:
        ending = Path(source).name if recipe.source.tarball else "source"
        yield source, f"{component.name}-{_plain(ending)}"
    for number, name in enumerate(recipe.patches, start=1):
        yield str(Path(recipe.folder, name)), f"{component.name}-{number}.patch"


def _source_path(source: SourceTable) -> str:
    try:
        kind = used_source_kind(source, "source")
    except UsageError:
        return ""
    if kind == "folder" and source.folder:
        return str(Path(source.folder.path).expanduser().absolute())
    address = getattr(getattr(source, kind), "url", "")
    # `github.com:owner/name` is an address, not a path.
    starts = ("/", "./", "../", "~", "file://")
    path = local_path(address) if address.startswith(starts) else None
    return str(path.expanduser().absolute()) if path else ""


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in name)


def refuse_foreign_python(plan: Plan) -> None:
    """Raise UsageError for a plan that needs an interpreter or packages of this machine."""
    fix = 'use a separate environment: --set environment.use="venv", without --base'
    for step in plan.steps:
        constraint = dict(step.variables).get("PIP_CONSTRAINT", "")
        if constraint.startswith(Path(plan.folder).as_uri()):
            raise UsageError(
                f"{plan.name} needs packages of this machine, which an image does not have",
                why="its environment has a base",
                hint=f"{fix}; or export a script",
            )
        if any(
            "rattler_client.py" in word
            for a in step.actions
            if isinstance(a, Command)
            for word in a.argv
        ):
            raise UsageError(
                f"{plan.name} creates its environment with py-rattler of this machine",
                hint="put micromamba, mamba, conda or pixi on PATH; the image then installs it",
            )
    system = SYSTEM_PATH.split(":")
    for component in plan.components:
        python = component.python
        if not python or PurePosixPath(python).is_relative_to(plan.folder):
            continue
        if "/" in python and str(PurePosixPath(python).parent) not in system:
            raise UsageError(
                f"{plan.name} needs {python} of this machine, which an image does not have",
                hint=f"{fix}; or export a script",
            )

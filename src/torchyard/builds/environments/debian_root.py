"""A Debian system of any suite in a root folder, with a virtual environment for its Python."""

from __future__ import annotations

import os
import re
from importlib import resources
from typing import Final

from torchyard.builds.environments.base_interpreter import find_program, root_of_base
from torchyard.builds.environments.model import (
    COMPONENT,
    EnvironmentPlan,
    EnvironmentRequest,
    base_variables,
    layer_actions,
    ordered_variables,
    packages_steps,
    pip_installer,
    python_variables,
    resolv_conf_command,
    system_gcc,
)
from torchyard.builds.plan import Command, Step, Variables, WriteFile
from torchyard.builds.recipe import DebianRootTable
from torchyard.errors import UsageError

BASE_PACKAGES: Final = ("ca-certificates",)
"""Installed when the root is created, before the machine's certificates replace its own."""
TOOL_PACKAGES: Final = (
    "build-essential",
    "ccache",
    "cmake",
    "git",
    "ninja-build",
    "pkg-config",
    "python3-dev",
    "python3-pip",
    "python3-venv",
)
"""Packages that every build in a root needs."""

_SUITE: Final = re.compile(r"[a-z][a-z0-9.-]*")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?([=/][A-Za-z0-9.+:~-]+)?")
_AREA: Final = re.compile(r"[a-z][a-z0-9-]*")
_VERSION: Final = re.compile(r"3\.\d+")
_ROOT_LAYOUT: Final = "1"
"""Increase to recreate the roots of earlier versions of make_root.sh."""
_APT: Final = ("apt-get", "--yes", "--no-install-recommends")


def plan_debian_root(request: EnvironmentRequest) -> EnvironmentPlan:
    """Return the plan: create the root, install Debian packages, then Python packages."""
    table = request.table.debian_root
    _check(table, request.where)
    _check_base(request)
    root = str(request.folder / "root")
    environment = str(request.folder / "env")
    python = f"{environment}/bin/python"
    variables = ordered_variables(
        request,
        programs=(f"{environment}/bin",),
        prefixes=(environment,),
        more=python_variables(request, environment),
    )
    base = base_variables(request.environ)
    installer = pip_installer(python)
    return EnvironmentPlan(
        kind="debian-root",
        python=python,
        root=root,
        steps=(
            _root_step(table, request, root, base),
            _debian_packages_step(table, request, root, base),
            _python_step(request, root, environment, base),
            *packages_steps(request, installer, variables, root=root),
        ),
        variables=variables,
        missing=_missing(table, request),
        notes=(f"the build runs in a Debian {table.suite} root folder, {root}",),
    )


def _root_step(
    table: DebianRootTable, request: EnvironmentRequest, root: str, base: Variables
) -> Step:
    script = str(request.folder / "make-root.sh")
    text = resources.files(__package__).joinpath("make_root.sh").read_text(encoding="utf-8")
    packages = ",".join(BASE_PACKAGES)
    return Step(
        name=f"{COMPONENT}/root",
        component=COMPONENT,
        title=f"create a Debian {table.suite} root folder",
        actions=(
            WriteFile(path=script, text=text, fingerprinted=False),
            Command(
                argv=(
                    "sh",
                    script,
                    root,
                    table.suite,
                    table.mirror,
                    packages,
                    *table.archive_areas,
                ),
                inside_root=False,
            ),
        ),
        variables=base,
        network=True,
        creates=(f"{root}/etc/torchyard-root",),
        inputs=(("root layout", _ROOT_LAYOUT),),
    )


def _debian_packages_step(
    table: DebianRootTable, request: EnvironmentRequest, root: str, base: Variables
) -> Step:
    """Return the step that installs Debian packages; it completes an interrupted dpkg run first."""
    version = request.table.python if _VERSION.fullmatch(request.table.python) else ""
    python = (f"python{version}-dev", f"python{version}-venv") if version else ()
    gcc = system_gcc(request.table.gcc) if request.table.gcc else ()
    packages = tuple(sorted({*TOOL_PACKAGES, *python, *gcc, *table.packages}))
    stamp = "/var/lib/torchyard/debian-packages"
    actions = [
        resolv_conf_command(root),
        Command(argv=("dpkg", "--configure", "-a")),
        Command(argv=("apt-get", "update")),
        Command(argv=(*_APT, "--fix-broken", "install")),
        Command(argv=(*_APT, "install", "--", *packages)),
    ]
    if table.build_dependencies_of:
        sources = tuple(sorted(set(table.build_dependencies_of)))
        actions.append(Command(argv=(*_APT, "build-dep", "--", *sources)))
    actions += [
        Command(argv=("apt-get", "clean")),
        Command(argv=("mkdir", "-p", os.path.dirname(stamp))),  # noqa: PTH120
        Command(argv=("touch", stamp)),
    ]
    return Step(
        name=f"{COMPONENT}/debian-packages",
        component=COMPONENT,
        title="install compiler and libraries",
        actions=tuple(actions),
        needs=(f"{COMPONENT}/root",),
        variables=(*base, ("DEBIAN_FRONTEND", "noninteractive")),
        network=True,
        root=root,
        creates=(root + stamp,),
    )


def _python_step(request: EnvironmentRequest, root: str, environment: str, base: Variables) -> Step:
    """Return the step that creates a virtual environment with Debian's Python packages visible."""
    named = request.table.python
    interpreter = f"/usr/bin/python{named}" if _VERSION.fullmatch(named) else named
    return Step(
        name=f"{COMPONENT}/python",
        component=COMPONENT,
        title="create the virtual environment",
        actions=(
            Command(
                argv=(
                    *(interpreter or "/usr/bin/python3", "-m", "venv", "--clear"),
                    *("--system-site-packages", "--", environment),
                )
            ),
            *layer_actions(request, f"{environment}/bin/python"),
        ),
        needs=(f"{COMPONENT}/debian-packages",),
        variables=base,
        network=True,
        root=root,
        # Not the interpreter: it is a link that is valid inside the root only.
        creates=(f"{environment}/pyvenv.cfg",),
    )


def _check(table: DebianRootTable, where: str) -> None:
    if not _SUITE.fullmatch(table.suite):
        raise UsageError(
            f"{where}.debian-root.suite: {table.suite!r} is not a valid suite name",
            hint="give a code name such as trixie",
        )
    for key, names in (
        ("packages", table.packages),
        ("build-dependencies-of", table.build_dependencies_of),
    ):
        for name in names:
            if not _PACKAGE.fullmatch(name):
                raise UsageError(
                    f"{where}.debian-root.{key}: {name!r} is not a valid Debian package name",
                    hint="give names such as libopenblas-dev, or libopenblas-dev=0.3.29-1",
                )
    for name in table.archive_areas:
        if not _AREA.fullmatch(name):
            raise UsageError(
                f"{where}.debian-root.archive-areas: {name!r} is not a valid area of an archive",
                hint="give main, contrib, non-free or non-free-firmware",
            )


def _check_base(request: EnvironmentRequest) -> None:
    """Raise UsageError for a base with its own root: it cannot run inside another root."""
    named = request.table.base
    root = root_of_base(named) if named else ""
    if root:
        raise UsageError(
            f"{request.where}.base: {named} has its own root folder, {root}",
            why="it cannot run in another one",
            hint="--set environment.use=venv builds in the root of the base",
        )


def _missing(table: DebianRootTable, request: EnvironmentRequest) -> tuple[str, ...]:
    missing = []
    if not (
        find_program("mmdebstrap", request.environ) or find_program("debootstrap", request.environ)
    ):
        missing.append("mmdebstrap or debootstrap (apt-get install mmdebstrap)")
    if not table.mirror and not find_program("apt-get", request.environ):
        missing.append("apt-get, for the URL of the mirror (or set environment.debian-root.mirror)")
    if os.geteuid() != 0:
        missing.append("root privileges, to create and enter a root folder")
    return tuple(missing)

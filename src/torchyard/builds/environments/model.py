"""The interface of all kinds of environment; the variables and Python packages they share.

A build starts from a fixed set of variables, not from the environment of the user's shell.
Variables that change a result are part of the plan and so of the fingerprints; those that only help
to reach the network or to save time are passed through at run time. `ordered_variables` alone
decides where programs, headers and libraries are searched (recipe, environment, system), so that
compiler, linker and loader agree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from torchyard.builds.plan import Action, Command, Step, Variables, WriteFile
from torchyard.builds.recipe import EnvironmentKind, EnvironmentTable

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PASSED: Final = re.compile(
    r"TERM|TMPDIR|USER|LOGNAME"
    r"|(?i:(http|https|ftp|all|no)_proxy)"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO|NODE_EXTRA_CA_CERTS"
    r"|(PIP|UV|CCACHE|SCCACHE)_\w+"
    r"|CONDARC|CONDA_PKGS_DIRS|MAMBA_ROOT_PREFIX|RATTLER_\w+|PIXI_(HOME|CACHE_DIR)"
    r"|GIT_CONFIG_\w+|XDG_(CONFIG|CACHE)_HOME|NETRC|SSH_AUTH_SOCK"
)
_NOT_PASSED: Final = re.compile(
    r"PIP_(TARGET|PREFIX|USER|ROOT|PYTHON|REQUIRE_VIRTUALENV|CONSTRAINT|NO_DEPS|PRE|DRY_RUN)"
    r"|UV_(PYTHON|PROJECT_ENVIRONMENT|CONSTRAINT|OVERRIDE|SYSTEM_PYTHON|PRERELEASE)"
)
"""Installer settings that would change what is installed, or where."""
_AFFECTS_BUILDS: Final = re.compile(
    r"CC|CXX|CPP|FC|LD|AR|(C|CXX|CPP|LD|F|CUDA)FLAGS|NVCC_\w+|CUDA\w*|ROCM_\w+|HIP_\w+"
    r"|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|LD_\w+|PKG_CONFIG_\w+"
    r"|CMAKE_\w+|USE_\w+|BUILD_\w+|TORCH_\w+|PYTORCH_\w+|MAX_JOBS|MAKEFLAGS|NINJA\w*"
    r"|CONDA_\w+|VIRTUAL_ENV|PYTHON(PATH|HOME|STARTUP|NOUSERSITE|USERBASE)|BLAS|OpenBLAS_HOME|ACL_ROOT_DIR|MKL\w*"
)


def base_variables(environ: Mapping[str, str]) -> Variables:
    """Return the variables of every step.

    The locale is C.UTF-8, because the diagnosis parses English messages.
    """
    return (
        ("PATH", SYSTEM_PATH),
        ("HOME", environ.get("HOME") or "/"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
    )


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return inherited variables: proxies, certificates, installer settings, caches, terminal.

    They may contain secrets and change often, so they are not part of plans and fingerprints.
    """
    return {
        name: value
        for name, value in sorted(environ.items())
        if _PASSED.fullmatch(name) and not _NOT_PASSED.fullmatch(name)
    }


def dropped_notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on variables and PATH folders of the user that the build does not inherit."""
    passed = inherited_variables(environ)
    names = sorted(
        name
        for name in environ
        if name not in passed and (_AFFECTS_BUILDS.fullmatch(name) or _NOT_PASSED.fullmatch(name))
    )
    notes = []
    if names:
        notes.append(
            f"not passed to the build: {', '.join(names)} (set the ones you need in "
            "[environment.variables] or as options)"
        )
    folders = [
        folder
        for folder in dict.fromkeys(environ.get("PATH", "").split(os.pathsep))
        if folder and folder.rstrip("/") not in SYSTEM_PATH.split(os.pathsep)
    ]
    if folders:
        notes.append(
            f"not on the build's PATH: {', '.join(folders)} (add what you need to environment.path)"
        )
    return tuple(notes)


def join_paths(*folders: str) -> str:
    """Join folders to a search path, without duplicates and empty entries."""
    parts = (part for folder in folders for part in folder.split(os.pathsep))
    return os.pathsep.join(dict.fromkeys(part for part in parts if part))


COMPONENT = "environment"
"""Component name of the steps of an environment."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """The inputs of an environment plan."""

    table: EnvironmentTable
    folder: Path
    """Absolute path of the build folder."""
    packages: tuple[str, ...]
    """pip requirements of all components."""
    where: str
    """Name of the table in errors, such as `pytorch: environment`."""
    environ: Mapping[str, str]
    """The environment variables of the Torchyard process."""
    python_range: str = ""
    """Python versions that the components support, such as `>=3.9,<3.14`; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentPlan:
    """The steps that create an environment, and what later steps need of it."""

    kind: EnvironmentKind
    python: str
    """Path of the interpreter, inside the root if there is one; empty if none is needed."""
    root: str = ""
    """Root folder of later steps; empty means the root of this machine."""
    steps: tuple[Step, ...] = ()
    variables: Variables = ()
    """The environment of later steps, without inherited variables."""
    missing: tuple[str, ...] = ()
    """Missing programs and permissions: the plan can be shown but not run."""
    notes: tuple[str, ...] = ()
    """Decisions made for the user, with reasons."""

    @property
    def last_step(self) -> tuple[str, ...]:
        """Name of the last step, as a dependency of later steps; empty if there are no steps."""
        return tuple(step.name for step in self.steps[-1:])


def ordered_variables(
    request: EnvironmentRequest,
    *,
    programs: Sequence[str] = (),
    headers: Sequence[str] = (),
    libraries: Sequence[str] = (),
    loaded: Sequence[str] = (),
    prefixes: Sequence[str] = (),
    more: Variables = (),
) -> Variables:
    """Return the variables of later steps; the recipe's `variables` override all others.

    `libraries` are for the linker and `loaded` for the loader: an environment whose programs have
    an rpath needs only the former.
    """
    table = request.table
    values = dict(base_variables(request.environ))
    values["PATH"] = join_paths(*table.path, *programs, values["PATH"])
    if table.gcc and table.use != "conda":
        gcc, cxx = system_gcc(table.gcc)
        values |= {"CC": gcc, "CXX": cxx, "CUDAHOSTCXX": cxx}
    values.update(more)
    for name, folders in (
        ("CMAKE_PREFIX_PATH", tuple(prefixes)),
        ("CPATH", (*table.include, *headers)),
        ("LIBRARY_PATH", (*table.libraries, *libraries)),
        ("LD_LIBRARY_PATH", (*table.libraries, *loaded)),
    ):
        if folders:
            values[name] = join_paths(*folders)
    values.update(table.variables)
    return tuple(values.items())


def system_gcc(version: str) -> tuple[str, str]:
    """Return the names of gcc and g++ of a version; Debian's packages have the same names."""
    major = version.partition(".")[0]
    return f"gcc-{major}", f"g++-{major}"


def resolv_conf_command(root: str) -> Command:
    """Return a command that copies the machine's resolver settings into the root.

    An existing link is replaced, not followed, because it would lead out of the root.
    """
    return Command(
        argv=("cp", "-L", "--remove-destination", "/etc/resolv.conf", f"{root}/etc/resolv.conf"),
        inside_root=False,
    )


_LAYER_PROGRAM: Final = "layer-packages.py"


def required_packages(request: EnvironmentRequest) -> tuple[str, ...]:
    """Return the requirements of the recipe and all components, without duplicates."""
    return tuple(dict.fromkeys((*request.table.venv.packages, *request.packages)))


def pip_installer(python: str) -> tuple[str, ...]:
    """Return the install command of the interpreter's pip."""
    return (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")


def packages_steps(
    request: EnvironmentRequest,
    installer: tuple[str, ...],
    variables: Variables,
    *,
    root: str = "",
) -> tuple[Step, ...]:
    """Return the step that installs the required packages; empty if there are none."""
    packages = required_packages(request)
    if not packages:
        return ()
    before = (resolv_conf_command(root),) if root else ()
    return (
        Step(
            name=f"{COMPONENT}/packages",
            component=COMPONENT,
            title="install the Python packages",
            actions=(*before, Command(argv=(*installer, "--", *packages))),
            needs=(f"{COMPONENT}/python",),
            variables=variables,
            network=True,
            root=root,
        ),
    )


def python_variables(request: EnvironmentRequest, environment: str) -> Variables:
    """Return the variables that activate a virtual environment, without ~/.local packages."""
    return (
        ("VIRTUAL_ENV", environment),
        # An environment with system packages would also use those in ~/.local.
        ("PYTHONNOUSERSITE", "1"),
        *layer_variables(request),
    )


def layer_actions(
    request: EnvironmentRequest, python: str, *, base: str = ""
) -> tuple[Action, ...]:
    """Return actions that make the packages of the base visible, after those of the environment.

    `base` is the interpreter to start in the step, if it is not the one in the recipe.
    """
    base = base or request.table.base
    if not base:
        return ()
    program = str(request.folder / _LAYER_PROGRAM)
    text = resources.files(__package__).joinpath("layer_packages.py").read_text(encoding="utf-8")
    constraints = str(request.folder / "base-constraints.txt")
    return (
        WriteFile(path=program, text=text, fingerprinted=False),
        Command(argv=(python, program, base, constraints)),
    )


def layer_variables(request: EnvironmentRequest) -> Variables:
    """Return the variable that constrains all pip runs to the torch of the base.

    The file is given as a URL, because pip splits the variable at spaces.
    """
    if not request.table.base:
        return ()
    return (("PIP_CONSTRAINT", (request.folder / "base-constraints.txt").as_uri()),)

"""The interface of all kinds of environment, and the variables that a build starts from.

A build starts from a stated few variables, not from the whole environment of the user's shell.
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
from pathlib import Path
from typing import Final, Protocol

from torchyard.builds.plan import Step, Variables
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
"""Settings of an installer that would change what is installed, or put it elsewhere."""
_MATTERS: Final = re.compile(
    r"CC|CXX|CPP|FC|LD|AR|(C|CXX|CPP|LD|F|CUDA)FLAGS|NVCC_\w+|CUDA\w*|ROCM_\w+|HIP_\w+"
    r"|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|LD_\w+|PKG_CONFIG_\w+"
    r"|CMAKE_\w+|USE_\w+|BUILD_\w+|TORCH_\w+|PYTORCH_\w+|MAX_JOBS|MAKEFLAGS|NINJA\w*"
    r"|CONDA_\w+|VIRTUAL_ENV|PYTHON(PATH|HOME|STARTUP|NOUSERSITE|USERBASE)|BLAS|OpenBLAS_HOME|ACL_ROOT_DIR|MKL\w*"
)


def base_variables(environ: Mapping[str, str]) -> Variables:
    """What every step gets, on every machine of a user the same.

    Messages are in English and UTF-8 whatever the user's language is: the diagnosis reads them.
    """
    return (
        ("PATH", SYSTEM_PATH),
        ("HOME", environ.get("HOME") or "/"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
    )


def passed_through(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables the runner adds: proxies, certificates, installer settings, caches, terminal.

    They may hold secrets and change from day to day, so no plan and no fingerprint has them.
    """
    return {
        name: value
        for name, value in sorted(environ.items())
        if _PASSED.fullmatch(name) and not _NOT_PASSED.fullmatch(name)
    }


def dropped_notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names what the build does not see although a build by hand would have."""
    passed = passed_through(environ)
    names = sorted(
        name
        for name in environ
        if name not in passed and (_MATTERS.fullmatch(name) or _NOT_PASSED.fullmatch(name))
    )
    notes = []
    if names:
        notes.append(
            f"not passed to the build: {', '.join(names)} (set what you need in "
            "[environment.variables] or as an option)"
        )
    folders = [
        folder
        for folder in dict.fromkeys(environ.get("PATH", "").split(os.pathsep))
        if folder and folder.rstrip("/") not in SYSTEM_PATH.split(os.pathsep)
    ]
    if folders:
        notes.append(
            f"not on the build's PATH: {', '.join(folders)} (name what you need in environment.path)"
        )
    return tuple(notes)


def joined_path(*folders: str) -> str:
    """Folders as one search path: each once, in order, without the empty one that means `here`."""
    parts = (part for folder in folders for part in folder.split(os.pathsep))
    return os.pathsep.join(dict.fromkeys(part for part in parts if part))


COMPONENT = "environment"
"""Name under which an environment's steps, logs and records are kept."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """What the recipe and the machine say about the environment."""

    table: EnvironmentTable
    folder: Path
    """The plan's folder, absolute."""
    packages: tuple[str, ...]
    """Requirements of all components for the package installer of Python."""
    where: str
    """What to call the table in an error, such as `pytorch: environment`."""
    environ: Mapping[str, str]
    """The variables Torchyard itself was started with."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentPlan:
    """How an environment is made, and what every later step sees of it."""

    kind: EnvironmentKind
    python: str
    """Path of the interpreter, inside the root where there is one; empty where none is needed."""
    root: str = ""
    """Root folder that later steps run in; empty means this machine."""
    steps: tuple[Step, ...] = ()
    variables: Variables = ()
    """The whole environment of later steps, apart from what is passed through."""
    installer: tuple[str, ...] = ()
    """Command that installs the requirements put behind it (`-r FILE`, `NAME`)."""
    missing: tuple[str, ...] = ()
    """Programs and rights the steps need and this machine has not: the plan can be shown, not run."""
    notes: tuple[str, ...] = ()
    """What was chosen for the user and why."""

    @property
    def last_step(self) -> tuple[str, ...]:
        """What a step that uses the environment needs: its last step, or nothing."""
        return tuple(step.name for step in self.steps[-1:])


class Environment(Protocol):
    """One kind of environment."""

    kind: EnvironmentKind

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan:
        """How to make it; looks at the machine and changes nothing."""
        ...


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
    """All variables of later steps; the recipe's own `variables` win over everything.

    `libraries` are for the linker and `loaded` for the loader: an environment whose own programs
    find their libraries by themselves needs the first without the second.
    """
    table = request.table
    values = dict(base_variables(request.environ))
    values["PATH"] = joined_path(*table.path, *programs, values["PATH"])
    values.update(more)
    for name, folders in (
        ("CMAKE_PREFIX_PATH", tuple(prefixes)),
        ("CPATH", (*table.include, *headers)),
        ("LIBRARY_PATH", (*table.libraries, *libraries)),
        ("LD_LIBRARY_PATH", (*table.libraries, *loaded)),
    ):
        if folders:
            values[name] = joined_path(*folders)
    values.update(table.variables)
    return tuple(values.items())

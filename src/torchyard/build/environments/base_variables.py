"""The variables a build starts from: a stated few, not everything the user's shell has.

What changes a result is in the plan and so in the fingerprints; what only helps to reach the network
or to save time is passed through at run time. Knows nothing of environments and of recipes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from torchyard.core.build_plan import Variables

__all__ = ["SYSTEM_PATH", "base_variables", "dropped_notes", "joined_path", "passed_through"]

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

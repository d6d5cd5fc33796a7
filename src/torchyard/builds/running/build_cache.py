"""Finished components, kept in a folder or on a web server by fingerprint, and reused by other builds.

A component is stored when its checks have passed. Its key covers the steps, the exact source, the
compilers, the packages of the environment and the processor. Restored files are checked again by
the `verify` step. Only wheels and installed files are stored, no objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from torchyard import __version__
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.plan import Command, Component, Plan, Step, portable_fingerprints
from torchyard.builds.sources import source_identity
from torchyard.builds.sources.download import download, open_address, transfer_error
from torchyard.builds.sources.fetch_plan import sha256_of
from torchyard.builds.verify.target_python import RunInTarget
from torchyard.builds.verify.verification import cache_of
from torchyard.core.records import decode, encode
from torchyard.errors import StepFailed, TorchyardError
from torchyard.files.safe_writing import replace_json

_FORMAT: Final = 1
_MOST_ENTRY_BYTES: Final = 1 << 24
_BUILDERS: Final = ("cmake", "make", "python")
_REPLACED: Final = ("configure", "build", "install")
_CPU_FACTS: Final = re.compile(
    r"(?m)^(?:flags|Features|model name|CPU part|CPU implementer)\s*:.*$"
)


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """The description of a stored component."""

    format: int
    key: str
    component: str
    version: str
    build_folder: str
    """Folder of the build that stored it."""
    sha256: str
    """Checksum of the archive."""
    torchyard: str
    stored: str
    text: tuple[str, ...] = ()
    """Text files with the path of the build folder, which is replaced."""
    binary: tuple[str, ...] = ()
    """Binary files with the path of its prefix or environment, which is replaced if it fits."""


@dataclass(frozen=True, kw_only=True)
class BuildCache:
    """A folder with finished components, to which those of a web server are downloaded."""

    folder: Path
    home: BuildsDirectory
    address: str = ""
    """URL of the same folder on a server, which is only read; empty if there is none."""

    def key(self, plan: Plan, part: Component) -> str:
        """Return the key of a component whose working copy exists; empty if it cannot be stored."""
        recipe, build = part.recipe, BuildFolder(folder=Path(plan.folder))
        own = [step for step in plan.steps if step.component == part.name]
        editable = recipe.builder == "python" and recipe.python.install == "editable"
        in_tree = recipe.builder == "cmake" and not recipe.cmake.install
        if recipe.builder not in _BUILDERS or editable or in_tree:
            return ""
        # Packages of a base are not known here; its constraints are a variable of every step.
        based = any(name == "PIP_CONSTRAINT" for step in own for name, _ in step.variables)
        if based or build.edited(part.name).exists():
            return ""
        places = {item.source: f"@source {item.name}" for item in plan.components}
        places |= {plan.folder: "@build", str(self.home.folder): "@home"}
        digests = portable_fingerprints(plan, places)
        try:
            sources = {item.name: _source(item) for item in _with_needs(plan, part)}
        except (TorchyardError, OSError):
            return ""
        content = {
            "format": _FORMAT,
            "steps": [
                digests[step.name]
                for step in own
                if step.name.partition("/")[2] not in ("fetch", "verify")
            ],
            "sources": sources,
            "machine": [platform.machine(), *platform.libc_ver(), _processor()],
            "environment": _environment(plan, part, own[-1].root),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _download(self, key: str) -> None:
        """Download the entry of a key if the server has it and the folder does not."""
        place = self.folder / key
        if not self.address or (place / "entry.json").exists():
            return
        address = f"{self.address.rstrip('/')}/{key}"
        try:
            with open_address(f"{address}/entry.json") as reply:
                text = reply.read(_MOST_ENTRY_BYTES)
            entry = decode(CacheEntry, json.loads(text), where="entry.json", strict=False)
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                error.close()
                return
            raise transfer_error(address, error) from error
        except (OSError, HTTPException) as error:
            raise transfer_error(address, error) from error
        place.mkdir(parents=True, exist_ok=True)
        archive = place / "files.tar"
        download(f"{address}/files.tar", archive, sha256=entry.sha256, progress=lambda _: None)
        replace_json(place / "entry.json", encode(entry))

    def find(self, key: str, plan: Plan) -> tuple[CacheEntry | None, str]:
        """Return the usable entry of a key, or None with the reason; empty if there is none."""
        try:
            self._download(key)
            table = json.loads((self.folder / key / "entry.json").read_text(encoding="utf-8"))
            entry = decode(CacheEntry, table, where="entry.json", strict=False)
        except FileNotFoundError:
            return None, ""
        except TorchyardError as error:
            return None, ": ".join(
                filter(None, ("its entry cannot be read", error.what, error.why))
            )
        except (OSError, ValueError) as error:
            return None, f"its entry cannot be read: {error}"
        archive = self.folder / key / "files.tar"
        if entry.format != _FORMAT or entry.key != key or not archive.is_file():
            return None, "its entry has another format, or its archive is missing"
        if sha256_of(archive) != entry.sha256:
            return None, "the checksum of its archive is wrong"
        if entry.binary and len(plan.folder) > len(entry.build_folder):
            return None, (
                f"{entry.binary[0]} contains the path of its build, {entry.build_folder}, and the"
                " path of this one is longer"
            )
        return entry, ""

    def restore(self, entry: CacheEntry, plan: Plan, part: Component) -> None:
        """Unpack the files of an entry to their places in this build."""
        places = _places(plan, part)
        old, new = entry.build_folder.encode(), plan.folder.encode()
        with tempfile.TemporaryDirectory(prefix=".cached-", dir=plan.folder) as name:
            regular = set()
            with tarfile.open(self.folder / entry.key / "files.tar") as archive:
                for member in archive:
                    _check_member(member)
                    archive.extract(member, name, set_attrs=True)
                    regular.update([member.name] if member.isreg() else [])
            for file in (*entry.text, *entry.binary):
                if file not in regular:
                    raise _unsafe(file)
                path = Path(name, file)
                data = path.read_bytes()
                changed = data.replace(old, new) if file in entry.text else _patched(data, old, new)
                mode = path.stat().st_mode
                path.write_bytes(changed)
                path.chmod(mode)
            for kind, place in places.items():
                if Path(name, kind).exists():
                    shutil.copytree(Path(name, kind), place, symlinks=True, dirs_exist_ok=True)
        BuildFolder(folder=Path(plan.folder)).restored(part.name).write_text(entry.key)

    def store(self, key: str, plan: Plan, part: Component, run: RunInTarget) -> str:
        """Store the result of a component; return why it was not stored, else an empty text."""
        if (self.folder / key / "entry.json").exists():
            return ""
        with tempfile.TemporaryDirectory(prefix=".stage-", dir=plan.folder) as name:
            stage = Path(name)
            problem = _collect(plan, part, stage, run)
            if problem:
                return problem
            text, binary, bound = _with_paths(stage, plan.folder)
            if bound:
                return f"{bound} contains the path of this build"
            self.folder.mkdir(parents=True, exist_ok=True)
            part_folder = Path(tempfile.mkdtemp(prefix=".part-", dir=self.folder))
            try:
                with tarfile.open(part_folder / "files.tar", "w") as archive:
                    for path in sorted(stage.iterdir()):
                        archive.add(path, arcname=path.name, filter=_without_owner)
                entry = CacheEntry(
                    format=_FORMAT,
                    key=key,
                    component=part.name,
                    version=part.recipe.version,
                    build_folder=plan.folder,
                    sha256=sha256_of(part_folder / "files.tar"),
                    torchyard=__version__,
                    stored=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    text=text,
                    binary=binary,
                )
                replace_json(part_folder / "entry.json", encode(entry))
                part_folder.chmod(0o755)
                with suppress(FileExistsError):
                    # Another machine may have stored the same component meanwhile.
                    part_folder.replace(self.folder / key)
            finally:
                shutil.rmtree(part_folder, ignore_errors=True)
        return ""


def is_replaced(step: Step) -> bool:
    """Whether a step is not needed if its component comes from the cache.

    A wheel is installed by its own step.
    """
    what = step.name.partition("/")[2]
    return what in _REPLACED and not any(
        isinstance(action, Command) and "--no-index" in " ".join(action.argv)
        for action in step.actions
        if what == "install"
    )


def _with_needs(plan: Plan, part: Component) -> list[Component]:
    parts = [part]
    for item in parts:
        parts += [need for name in item.needs if (need := plan.component(name)) not in parts]
    return parts


def _source(part: Component) -> dict[str, Any]:
    """Return the identity of the compiled source, without the place that it came from."""
    copied = Path(part.tree, ".git").exists()
    identity = source_identity(part.recipe.source, Path(part.tree if copied else part.source))
    return {key: value for key, value in encode(identity).items() if key != "origin"}


def _places(plan: Plan, part: Component) -> dict[str, Path]:
    """Return the folders of a component, by their names in an archive."""
    folder = BuildFolder(folder=Path(plan.folder))
    return {"prefix": Path(part.prefix), "dist": folder.dist(part.name), "tree": Path(part.tree)}


def _collect(plan: Plan, part: Component, stage: Path, run: RunInTarget) -> str:
    """Copy the result of a component below `stage`; return why that is not possible, or nothing."""
    cache_file = cache_of(part)
    if cache_file is not None and cache_file.is_relative_to(part.tree):
        # For the checks, and so that the configure step counts as done.
        copy = stage / "tree" / cache_file.relative_to(part.tree)
        copy.parent.mkdir(parents=True)
        shutil.copy2(cache_file, copy)
    if part.recipe.builder == "python":
        shutil.copytree(_places(plan, part)["dist"], stage / "dist")
        return ""
    install = next((s for s in plan.steps if s.name == f"{part.name}/install"), None)
    command = install.actions[-1] if install is not None else None
    if not isinstance(command, Command):
        return "it installs nothing"
    destination = str(stage / "installed")
    argv = (*command.argv, *([f"DESTDIR={destination}"] if part.recipe.builder == "make" else []))
    script = 'cd "$1" && shift && exec "$@"'
    completed = run(
        ("sh", "-c", script, "sh", command.folder or plan.folder, *argv), {"DESTDIR": destination}
    )
    made = Path(destination + part.prefix)
    if completed.returncode or not made.is_dir():
        return "its install step does not support DESTDIR"
    made.rename(stage / "prefix")
    if any(path.is_file() for path in Path(destination).rglob("*")):
        return "it installs files outside the prefix"
    shutil.rmtree(destination)
    return ""


def _with_paths(stage: Path, folder: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the text and binary files with the path of the build, and a wheel that has one."""
    text, binary, bound = [], [], ""
    needed = re.compile(re.escape(folder).encode() + rb"/(?:prefix|env)")
    for path in sorted(stage.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = str(path.relative_to(stage))
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                if any(needed.search(wheel.read(item)) for item in wheel.namelist()):
                    bound = bound or path.name
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            text += [name] if folder.encode() in data else []
        elif needed.search(data):
            # The path in debug information and messages does not matter: it is that of the tree.
            binary.append(name)
    return tuple(text), tuple(binary), bound


def _patched(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace a path in zero-terminated strings, which keep their length."""
    strings = re.compile(rb"[^\0]*" + re.escape(old) + rb"[^\0]*")
    return strings.sub(lambda match: match[0].replace(old, new).ljust(len(match[0]), b"\0"), data)


def _check_member(member: tarfile.TarInfo) -> None:
    """Raise StepFailed for a member that would be written outside the folder."""
    target = member.linkname
    if member.issym():
        target = os.path.normpath(Path(member.name).parent / member.linkname)
    safe = member.isreg() or member.isdir() or member.issym() or member.islnk()
    for name in (member.name, target):
        safe = safe and not name.startswith(("/", "..")) and ".." not in Path(name).parts
    if not safe:
        raise _unsafe(member.name)


def _unsafe(name: str) -> StepFailed:
    return StepFailed(
        f"the build cache contains the unsafe name {name!r}",
        hint="remove the entry, and build without --build-cache",
    )


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _processor() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return "\n".join(sorted(set(_CPU_FACTS.findall(text))))
    return ""


def _environment(plan: Plan, part: Component, root: str) -> list[str]:
    """Return names and versions of the packages of the environment, without those built here."""
    build = BuildFolder(folder=Path(plan.folder))
    built = {_plain(path.name) for path in build.wheels.glob("*.whl")}
    names = {path.name for path in _dist_infos(part)}
    packages = {name for name in names if _plain(name) not in built}
    packages |= {path.name for path in Path(plan.folder, "env", "conda-meta").glob("*.json")}
    status = Path(root, "var/lib/dpkg/status") if root else None
    return [*sorted(packages), *([sha256_of(status)] if status and status.is_file() else [])]


def _dist_infos(part: Component) -> Iterator[Path]:
    if part.python:
        yield from Path(part.python).parent.parent.glob("lib*/python3*/site-packages/*.dist-info")


def _plain(name: str) -> str:
    """Return the distribution in the name of a wheel or of its metadata folder."""
    return name.partition("-")[0].lower()

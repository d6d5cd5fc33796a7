"""Helpers for sandbox tests: commands, a minimal root folder, marks of processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import torchyard.builds.sandbox
from torchyard.builds.sandbox import Sandbox, abilities

PROGRAM = Path(torchyard.builds.sandbox.__file__).with_name("sandbox_program.py")
PYTHON = os.path.realpath(sys.executable)
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

needs_mounts = pytest.mark.skipif(
    not abilities().can_mount, reason=f"no private mounts here: {abilities().why_not}"
)
needs_cut_network = pytest.mark.skipif(
    not abilities().can_unshare_network, reason=f"no private network here: {abilities().why_not}"
)
needs_processes = pytest.mark.skipif(
    not abilities().can_separate_processes,
    reason=f"no private processes here: {abilities().why_not}",
)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def run(
    sandbox: Sandbox, *argv: str, folder: str = "/", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command in the sandbox, to its end."""
    command, environment = sandbox.command(
        argv, folder=folder, variables={"PATH": SEARCH_PATH, **variables}
    )
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def run_as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program with these arguments, started by an ordinary user; only root can do that."""
    if not shutil.which("setpriv") or not Path("/usr/bin/python3").exists():
        pytest.skip("setpriv or the system's python is missing")
    done = subprocess.run(
        [
            *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
            *("/usr/bin/python3", "-I", "-S", str(PROGRAM), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "user namespace" in done.stderr or "can't open file" in done.stderr:
        pytest.skip(f"not for an ordinary user here: {done.stderr}")
    return done


@contextmanager
def folder_for_nobody() -> Iterator[Path]:
    """A folder of that user, in a place it can reach, which pytest's folders are not."""
    with tempfile.TemporaryDirectory(prefix="torchyard-test-") as folder:
        os.chown(folder, 65534, 65534)
        yield Path(folder)


def program(*arguments: str) -> list[str]:
    """A line that starts the program directly."""
    return [PYTHON, "-I", "-S", str(PROGRAM), *arguments]


def new_mark() -> str:
    """A value no other process has in its environment."""
    return uuid.uuid4().hex


def marked(mark: str) -> list[int]:
    """Processes that have the mark in their environment, seen from outside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(holds: Callable[[], bool], *, limit_s: float = 20.0) -> bool:
    """True as soon as it holds, False when the time is up."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def make_root(
    folder: Path,
    programs: Iterable[str] = ("sh", "cat", "ls", "sleep", "env"),
    modules: str = "_ctypes",
) -> Path:
    """A root folder with these programs, this interpreter's libraries, and nothing else.

    `modules` is a glob of the interpreter's own native modules whose libraries are brought, too.
    """
    for name in ("etc", "tmp", "usr/bin", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    paths = []
    for name in programs:
        path = shutil.which(name, path=SEARCH_PATH)
        if path is None:
            pytest.skip(f"{name} is not here")
        shutil.copy2(path, folder / "bin" / name)
        paths.append(path)
    if _is_in_system_folder(PYTHON):
        _copy(Path(PYTHON), folder)
    resolvers = [str(path) for path in Path("/lib").glob("*/libnss_*.so.2")]
    extensions = [str(path) for path in Path(STANDARD_LIBRARY).glob(f"lib-dynload/{modules}.*.so")]
    for library in libraries_of([*paths, PYTHON, *resolvers, *extensions]):
        _copy(Path(library), folder)
    for library in resolvers:
        _copy(Path(library), folder)
    return folder


def standard_library_folders() -> tuple[str, ...]:
    """What must be shown in such a root for this interpreter to run there."""
    return (STANDARD_LIBRARY,)


def libraries_of(files: Sequence[str]) -> list[str]:
    """The libraries that the loader would load for these."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    return sorted(set(re.findall(r"(/\S+) \(0x", said)))


def _copy(file: Path, root: Path) -> None:
    place = root / str(file).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, place)


def _is_in_system_folder(path: str) -> bool:
    return path.split("/")[1] in {"usr", "bin", "lib", "var"}

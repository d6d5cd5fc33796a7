"""Folders of builds on disk, and the locks that protect them.

`BuildsDirectory` and `BuildFolder` only compute paths. `exclusive_run_lock` allows one run at a time in a build
folder, and none while other builds depend on it; `source_lock` keeps a fetched source unchanged
while another build copies it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from torchyard.builds.recipe import Recipe
from torchyard.core.records import encode
from torchyard.errors import NotAllowed, UsageError
from torchyard.files.safe_writing import write_error
from torchyard.results.directory import home_folder

_UNUSABLE: Final = ';:"\\'
"""Separators of PATH and of CMake lists, and what CMake does not quote in its install scripts."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_build_name(name: str, *, where: str) -> str:
    """Return the name if it is valid for a folder and a target; raise UsageError otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {name!r} is not a valid build name",
            hint="use letters, digits, dots, dashes, plus signs and underscores",
        )
    return name


def check_build_path(folder: Path) -> None:
    """Raise UsageError for a path that a build system cannot represent."""
    unusable = [letter for letter in str(folder) if letter in _UNUSABLE or not letter.isprintable()]
    if unusable:
        raise UsageError(
            f"the path of the build folder {str(folder)!r} contains {unusable[0]!r}",
            why="PATH, CMake or Ninja cannot represent it",
            hint="choose another folder with TORCHYARD_HOME",
        )


class BuildsDirectory:
    """The folder with all builds, sources and downloads of a user."""

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self.builds = folder / "builds"
        """One folder per build."""
        self.downloads = folder / "downloads"
        """Archives and apt state."""
        self.history = folder / "compile-history"
        """Compile costs of each file on this machine."""
        self.tools = folder / "tool-versions.json"
        """Cached versions of programs."""

    @staticmethod
    def default() -> BuildsDirectory:
        """Return the folder given by TORCHYARD_HOME or the XDG base directory rules."""
        return BuildsDirectory(folder=home_folder())

    def source(self, recipe: Recipe, downloads: Sequence[str] = ()) -> Path:
        """Return the folder of a fetched source; sources described differently have their own.

        `downloads` are the projects that are downloaded into it.
        """
        text = json.dumps(encode(recipe.source), sort_keys=True) + "".join(downloads)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        version = re.sub(r"[^A-Za-z0-9._+-]", "-", recipe.version) or "unversioned"
        return self.folder / "sources" / f"{recipe.name}-{version}-{digest}"

    def build(self, name: str) -> BuildFolder:
        """The folder of one build."""
        return BuildFolder(folder=self.builds / check_build_name(name, where="--name"))


class BuildFolder:
    """The folder of one build, and the paths in it."""

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self.modules = folder / "modulefiles"
        """For `module use`: a module file with the name of the build."""
        self.prefix = folder / "prefix"
        """Installation prefix of libraries and programs."""
        self.wheels = folder / "wheels"
        """Folder of the finished wheels."""
        self.meter = folder / "meter"
        """The compile meter, its locks and its logs."""
        self.plan_file = folder / "plan.json"
        """The plan of the latest run."""
        self.request_file = folder / "request.json"
        """The request: recipe, variant, version, settings."""
        self.used_lock_file = folder / "used.lock.toml"
        """The lock file that the build was made with; missing if there was none."""
        self.record_file = folder / "record.json"
        """The record of the finished build."""
        self.freeze_file = folder / "freeze.txt"
        """Packages of the environment, as in `pip freeze`."""
        self.lock_file = folder / "running"
        """Lock file held while a build runs in this folder."""

    def shown_in(self, root: str) -> tuple[str, ...]:
        """Return the folders to mount in a root even if they are below a system folder (/var).

        These are the home directory with the fetched sources, and the build that owns the root: a
        build with a base runs in the root of that base.
        """
        owner = Path(root).parent
        return tuple(dict.fromkeys((str(self.folder.parent.parent), str(owner))))

    def tree(self, component: str) -> Path:
        """The working copy of a component."""
        return self.folder / "trees" / component

    def listed(self, component: str) -> Path:
        """List of the source files that the working copy was made from."""
        return self.folder / "trees" / f"{component}.listed"

    def dist(self, component: str) -> Path:
        """Output folder of a component's wheel."""
        return self.folder / "trees" / f"{component}.dist"

    def log(self, step: str) -> Path:
        """The log of a step."""
        return self.folder / "logs" / f"{step.replace('/', '-')}.log"

    def state(self, step: str) -> Path:
        """State of the last run of a step."""
        return self.folder / "steps" / f"{step.replace('/', '-')}.json"

    def report(self, component: str) -> Path:
        """Verification report of a component."""
        return self.folder / "steps" / f"{component}.verified.json"

    def edited(self, component: str) -> Path:
        """Marker file: the working copy was edited and rebuilt."""
        return self.folder / "steps" / f"{component}.edited"

    def restored(self, component: str) -> Path:
        """Key of the build cache from which a component was restored; missing if it was compiled."""
        return self.folder / "steps" / f"{component}.restored"

    def compilers(self, component: str) -> Path:
        """Versions of the compilers that made the objects of a component."""
        return self.folder / "steps" / f"{component}.compilers"

    def meter_log(self, component: str) -> Path:
        """Log of the compile costs of a component."""
        return self.meter / f"{component}.log"


def open_lock_file(path: Path) -> int:
    """Return the descriptor of a lock file, which is created; the lock is not taken yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_error(path, error, kept="existing data") from error


@contextmanager
def exclusive_run_lock(lock_file: Path) -> Iterator[None]:
    """Lock the build folder exclusively; raise NotAllowed if another process holds the lock.

    The kernel releases the lock when the process ends, however it ends.
    """
    descriptor = open_lock_file(lock_file)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _lock_error(lock_file, descriptor) from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise write_error(lock_file, error, kept="existing data") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def base_build_locks(lock_files: Iterable[Path]) -> Iterator[None]:
    """Lock base builds against changes; raise NotAllowed while one of them is being built.

    The locks are shared: any number of builds may use a base. A folder in which the lock file
    cannot be opened is not locked.
    """
    with ExitStack() as locks:
        for lock_file in lock_files:
            with suppress(OSError):
                descriptor = os.open(lock_file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                locks.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise NotAllowed(
                        f"{lock_file.parent}, the base of this build, is being built"
                        f" (process {_holder(descriptor)})",
                        hint="wait until it has finished, then run the command again",
                    ) from error
        yield


def _lock_error(lock_file: Path, descriptor: int) -> NotAllowed:
    """Return the error for a held lock: another run, or a build that uses this one as its base."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return NotAllowed(
            f"another build is running in {lock_file.parent} (process {_holder(descriptor)})",
            hint="wait until it has finished, or build under another name with --name",
        )
    return NotAllowed(
        f"a build that uses {lock_file.parent} as its base is running",
        hint="wait until it has finished, or build under another name with --name",
    )


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 40, 0).decode(errors="replace").strip() or "unknown"


_POLL_INTERVAL_S: Final = 0.2


@contextmanager
def source_lock(
    source: Path, *, alone: bool, stopped: Callable[[], bool], waiting: Callable[[], None]
) -> Iterator[None]:
    """Lock a fetched source: exclusively (`alone`) to change it, shared to copy it.

    Calls `waiting` once if the lock is held, and stops waiting when `stopped` returns True.
    """
    path = source.with_name(source.name + ".lock")
    descriptor = open_lock_file(path)
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        reported = False
        while not stopped():
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not reported:
                    waiting()
                reported = True
                time.sleep(_POLL_INTERVAL_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)

"""Folders of builds on disk, and the locks that protect them.

`YardHome` and `BuildFolder` only compute paths. `only_run` allows one run at a time in a build
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.recipe import Recipe
from torchyard.core.records import encode
from torchyard.errors import NotAllowed, UsageError
from torchyard.files.safe_writing import write_failed
from torchyard.results.directory import home_folder

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_build_name(name: str, *, where: str) -> str:
    """The name, if it can be the name of a folder and of a target."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {name!r} cannot name a build",
            hint="use letters, digits, dots, dashes, plus signs and underscores",
        )
    return name


@dataclass(frozen=True, kw_only=True)
class YardHome:
    """The folder that all builds of a user share."""

    folder: Path

    @staticmethod
    def default() -> YardHome:
        """The home that TORCHYARD_HOME or the XDG rules name."""
        return YardHome(folder=home_folder())

    @property
    def builds(self) -> Path:
        """One folder per build."""
        return self.folder / "builds"

    @property
    def downloads(self) -> Path:
        """Archives and apt state."""
        return self.folder / "downloads"

    @property
    def history(self) -> Path:
        """What compiling each file cost on this machine."""
        return self.folder / "compile-history"

    @property
    def tools(self) -> Path:
        """Versions of programs that were asked before."""
        return self.folder / "tool-versions.json"

    def source(self, recipe: Recipe) -> Path:
        """The folder of a fetched source: one for each different description of it."""
        text = json.dumps(encode(recipe.source), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        version = re.sub(r"[^A-Za-z0-9._+-]", "-", recipe.version) or "unversioned"
        return self.folder / "sources" / f"{recipe.name}-{version}-{digest}"

    def build(self, name: str) -> BuildFolder:
        """The folder of one build."""
        return BuildFolder(folder=self.builds / check_build_name(name, where="--name"))


@dataclass(frozen=True, kw_only=True)
class BuildFolder:
    """The folder of one build: everything it owns is below."""

    folder: Path

    def shown_in(self, root: str) -> tuple[str, ...]:
        """What commands in a root folder must see although it may lie in a system folder (/var).

        The home, because fetched sources are there, and the build that the root belongs to: a
        build over a base runs in the root of that base.
        """
        owner = Path(root).parent
        return tuple(dict.fromkeys((str(self.folder.parent.parent), str(owner))))

    @property
    def prefix(self) -> Path:
        """Where libraries and programs are installed."""
        return self.folder / "prefix"

    @property
    def wheels(self) -> Path:
        """Where the wheels are collected."""
        return self.folder / "wheels"

    @property
    def meter(self) -> Path:
        """The compile meter, its locks and its logs."""
        return self.folder / "meter"

    @property
    def plan_file(self) -> Path:
        """The plan of the latest start."""
        return self.folder / "plan.json"

    @property
    def request_file(self) -> Path:
        """What was asked for: recipe, variant, version, settings."""
        return self.folder / "request.json"

    @property
    def used_lock_file(self) -> Path:
        """The lock that the build was made with; not there where it was made with none."""
        return self.folder / "used.lock.toml"

    @property
    def record_file(self) -> Path:
        """What the finished build was made of."""
        return self.folder / "record.json"

    @property
    def freeze_file(self) -> Path:
        """Packages of the environment, in pip's form."""
        return self.folder / "freeze.txt"

    @property
    def lock_file(self) -> Path:
        """Held while a build runs, so that two cannot run in one folder."""
        return self.folder / "running"

    def tree(self, component: str) -> Path:
        """The working copy of a component."""
        return self.folder / "trees" / component

    def listed(self, component: str) -> Path:
        """Names of the files of the source that the working copy was made from."""
        return self.folder / "trees" / f"{component}.listed"

    def dist(self, component: str) -> Path:
        """Where a component's own wheel is made."""
        return self.folder / "trees" / f"{component}.dist"

    def log(self, step: str) -> Path:
        """The log of a step."""
        return self.folder / "logs" / f"{step.replace('/', '-')}.log"

    def state(self, step: str) -> Path:
        """What is known of a step's last run."""
        return self.folder / "steps" / f"{step.replace('/', '-')}.json"

    def report(self, component: str) -> Path:
        """What verifying a component found."""
        return self.folder / "steps" / f"{component}.verified.json"

    def edited(self, component: str) -> Path:
        """Exists when a working copy was compiled again after edits."""
        return self.folder / "steps" / f"{component}.edited"

    def meter_log(self, component: str) -> Path:
        """What the compiles of a component cost."""
        return self.meter / f"{component}.log"


@contextmanager
def only_run(lock_file: Path) -> Iterator[None]:
    """Hold the folder; raises NotAllowed when another process does. A kill gives it back."""
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_failed(lock_file, error, kept="what is there") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _taken(lock_file, descriptor) from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise write_failed(lock_file, error, kept="what is there") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def standing_on(lock_files: Iterable[Path]) -> Iterator[None]:
    """Keep these folders as they are; raises NotAllowed while one of them is being built.

    Any number of builds may stand on a folder at a time. A folder that only others may write to is
    not kept: whoever may write there does not ask us either.
    """
    with ExitStack() as held:
        for lock_file in lock_files:
            with suppress(OSError):
                descriptor = os.open(lock_file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                held.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise NotAllowed(
                        f"{lock_file.parent}, which this build stands on, is being built"
                        f" (process {_holder(descriptor)})",
                        hint="wait for it, then say the same again",
                    ) from error
        yield


def _taken(lock_file: Path, descriptor: int) -> NotAllowed:
    """Who keeps a run out: another run, or builds that stand on this one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return NotAllowed(
            f"another build runs in {lock_file.parent} (process {_holder(descriptor)})",
            hint="wait for it, or build under another name with --name",
        )
    return NotAllowed(
        f"a build that stands on {lock_file.parent} is running",
        hint="wait for it, or build under another name with --name",
    )


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 40, 0).decode(errors="replace").strip() or "unknown"


_PAUSE_S: Final = 0.2


@contextmanager
def source_lock(
    source: Path, *, alone: bool, stopped: Callable[[], bool], waiting: Callable[[], None]
) -> Iterator[None]:
    """Hold the source, `alone` to change it; a kill gives it back.

    Waits for as long as others hold it, and calls `waiting` once; gives up when `stopped`.
    """
    path = source.with_name(source.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise write_failed(path, error, kept="what is there") from error
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        told = False
        while not stopped():
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(_PAUSE_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)

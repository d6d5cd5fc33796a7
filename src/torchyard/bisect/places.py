"""Where a program runs for each name of a search: checkout, environment of a release, or settings.

The user's working tree is never touched. Names of revisions are untrusted: git runs without a shell, and
without hooks of the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.bisect.environments import PackageEnvironments
from torchyard.bisect.model import Ready, Revision, SearchFolder, Setting
from torchyard.errors import MissingTool, NothingToDo, StepFailed, UsageError
from torchyard.process.programs import capture

_LOCATION_VARIABLES: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Set inside hooks and `git` aliases; they would redirect git to another repository."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A folder inside a git repository."""

    top: Path
    prefix: str
    """Path of the folder inside the repository; programs start there."""

    def commit(self, name: str, *, option: str) -> str:
        """Return the commit of a revision."""
        answer = (
            None
            if name.startswith("-")
            else _git(self.top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        )
        if answer is None or answer.returncode:
            raise UsageError(
                f"{option}: {name!r} is not a revision of {self.top}",
                hint=self._missing or "`git log --oneline` lists revisions",
            )
        return answer.stdout.strip()

    @property
    def _missing(self) -> str:
        """Return a hint if the clone lacks old revisions."""
        answer = _git(self.top, "rev-parse", "--is-shallow-repository")
        shallow = answer.stdout.strip() == "true"
        return "the clone is shallow: `git fetch --unshallow` gets older revisions" * shallow

    def revisions(self, good: str, bad: str) -> list[Revision]:
        """Return the revisions from one commit to another, along the first parents."""
        if good == bad:
            raise NothingToDo("--good and --bad are the same revision", hint="give two revisions")
        text = self._output("log", "-z", "--first-parent", "--format=%H%x09%s", bad, "--")
        lines = [line.partition("\t") for line in text.split("\0") if line]
        chain = [Revision(commit=commit, subject=subject) for commit, _, subject in lines]
        place = next((i for i, one in enumerate(chain) if one.commit == good), None)
        if place is None:
            raise UsageError(
                f"--good {good[:10]} is not among the first-parent ancestors of --bad {bad[:10]}",
                why="the search needs a linear range of revisions",
                hint=self._missing
                or "exchange --good and --bad, or use `git merge-base GOOD BAD` as --good",
            )
        return chain[place::-1]

    def files(self, good: str, bad: str) -> dict[str, list[str]]:
        """Return the files that each revision after `good` touches, against its first parent."""
        options = ("--first-parent", "-m", "--name-only", "--no-renames", "--format=%x01%H")
        touched: dict[str, list[str]] = {}
        for part in self._output("log", *options, f"{good}..{bad}", "--").split("\x01")[1:]:
            commit, *files = part.split("\n")
            touched[commit] = [file for file in files if file]
        return touched

    def check_out(self, commit: str, folder: Path) -> None:
        """Check a commit out into a new worktree; remove what an interrupted attempt left."""
        self.remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._output("worktree", "add", "--force", "--detach", "--quiet", str(folder), commit)

    def remove(self, folder: Path) -> None:
        """Remove a worktree, also an incomplete one, which git keeps locked."""
        shutil.rmtree(folder, ignore_errors=True)
        _git(self.top, "worktree", "remove", "--force", "--force", str(folder))

    def _output(self, *arguments: str) -> str:
        answer = _git(self.top, *arguments)
        if answer.returncode:
            raise StepFailed(f"git {arguments[0]} failed in {self.top}", why=answer.stderr.strip())
        return answer.stdout


def open_repository(folder: Path) -> Repository:
    """Return the repository that contains a folder."""
    if not folder.is_dir():
        raise UsageError(f"--repo: {str(folder)!r} is not a folder", hint="give a git repository")
    answer = _git(folder, "rev-parse", "--show-toplevel", "--show-prefix")
    top, _, prefix = answer.stdout.partition("\n")
    if answer.returncode or not top:
        raise UsageError(
            f"--repo: {str(folder)!r} is not in a git repository with a working tree",
            why=answer.stderr.strip(),
            hint="give the folder of a clone",
        )
    return Repository(top=Path(top), prefix=prefix.rstrip("\n"))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv: Sequence[str] = (
        *("git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.quotePath=false"),
        *arguments,
    )
    variables = {k: v for k, v in os.environ.items() if k not in _LOCATION_VARIABLES}
    try:
        return capture(argv, folder=folder, variables={**variables, "LC_ALL": "C.UTF-8"})
    except FileNotFoundError as error:
        raise MissingTool("git is not installed", hint="install git") from error


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a command starts: its folder, variables, and replacements of `{NAME}` in its words."""

    folder: Path
    variables: Mapping[str, str | None] = field(default_factory=dict)
    replacements: Mapping[str, str] = field(default_factory=dict)
    repository: Path | None = None
    """The folder of the user that a checkout stands for."""

    def words(self, argv: Sequence[str]) -> list[str]:
        """Return the command with its replacements."""
        words = list(argv)
        for name, value in self.replacements.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words


RunSetup = Callable[[Invocation], None]
"""Run `--setup`, if there is one; raises if it fails."""


class Places:
    """A family of places; names are those of revisions in a search."""

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Make a place unless it exists, run the setup once, and return how programs start there."""
        raise NotImplementedError

    def remove(self) -> None:
        """Remove what other searches cannot use, after a search that is decided."""


@dataclass(frozen=True, kw_only=True)
class GitPlaces(Places):
    """A worktree for each revision."""

    repository: Repository
    folder: SearchFolder
    python: str = ""
    """An interpreter; a relative path is inside the checkout."""

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Check a revision out and run its setup, unless an earlier process did."""
        worktree = self.folder.worktree(name)
        folder = worktree / self.repository.prefix
        invocation = Invocation(
            folder=folder,
            replacements={"python": str(folder / self.python)} if self.python else {},
            repository=self.repository.top / self.repository.prefix,
        )
        if not (name in self.folder.state.ready and worktree.is_dir()):
            self.repository.check_out(name, worktree)
            setup(invocation)
            self.folder.append(Ready(commit=name))
        return invocation

    def remove(self) -> None:
        """Remove all worktrees."""
        for commit in self.folder.state.ready:
            self.repository.remove(self.folder.worktree(commit))


@dataclass(frozen=True, kw_only=True)
class ReleasePlaces(Places):
    """A virtual environment for each version of a package."""

    package: str
    others: Sequence[str]
    """Requirements of further packages."""
    environments: PackageEnvironments

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Install a version into an environment of its own."""
        packages = (f"{self.package}=={name}", *self.others)
        return _in_environment(self.environments, name, packages, {}, setup)


@dataclass(frozen=True, kw_only=True)
class SettingPlaces(Places):
    """Sets of settings; a name is the set of the settings that have the bad value (`settings_of`)."""

    settings: Sequence[Setting]
    environments: PackageEnvironments

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Return the variables and values of a set, in an environment with its packages."""
        values = settings_of(name, self.settings)
        variables = {one.name: value for one, value in values if one.kind == "variable"}
        replacements = {one.name: value or "" for one, value in values if one.kind == "value"}
        packages = tuple(
            f"{one.name}=={value}" for one, value in values if one.kind == "package" and value
        )
        if any(one.kind == "package" for one in self.settings):
            place = _in_environment(self.environments, name, packages, variables, setup)
            replacements = {**place.replacements, **replacements}
        return Invocation(folder=Path.cwd(), variables=variables, replacements=replacements)


def settings_of(name: str, settings: Sequence[Setting]) -> list[tuple[Setting, str | None]]:
    """Return each setting with its value in a set: bit i of the hexadecimal number selects bad."""
    bits = int(name, 16)
    differing = [one for one in settings if one.good != one.bad]
    return [
        (one, one.bad if one in differing and bits >> differing.index(one) & 1 else one.good)
        for one in settings
    ]


def _in_environment(
    environments: PackageEnvironments,
    name: str,
    packages: tuple[str, ...],
    variables: Mapping[str, str | None],
    setup: RunSetup,
) -> Invocation:
    python = environments.interpreter(packages)
    invocation = Invocation(
        folder=Path.cwd(), variables=variables, replacements={"python": str(python)}
    )
    if not environments.is_complete(packages):
        with environments.locked(packages):
            # Another process may have made it in the meantime.
            if not environments.is_complete(packages):
                environments.install(packages, name)
                setup(invocation)
                environments.complete(packages)
    return invocation

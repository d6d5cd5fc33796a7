"""Where a program runs for each name of a search: checkout, environment of a release, or settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torchyard.bisect.environments import PackageEnvironments
from torchyard.bisect.model import Ready, SearchFolder, Setting
from torchyard.bisect.revisions import Repository

__all__ = [
    "GitPlaces",
    "Invocation",
    "Places",
    "ReleasePlaces",
    "RunSetup",
    "SettingPlaces",
    "settings_of",
]


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


class Places(Protocol):
    """A family of places; names are those of revisions in a search."""

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Make a place unless it exists, run the setup once, and return how programs start there."""

    def remove(self) -> None:
        """Remove what is not worth keeping after a search that is decided."""


@dataclass(frozen=True, kw_only=True)
class GitPlaces:
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
class ReleasePlaces:
    """A virtual environment for each version of a package."""

    package: str
    others: Sequence[str]
    """Requirements of further packages."""
    environments: PackageEnvironments

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Install a version into an environment of its own."""
        packages = (f"{self.package}=={name}", *self.others)
        return _in_environment(self.environments, name, packages, {}, setup)

    def remove(self) -> None:
        """Environments stay: other searches use them."""


@dataclass(frozen=True, kw_only=True)
class SettingPlaces:
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

    def remove(self) -> None:
        """Environments stay: other searches use them."""


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

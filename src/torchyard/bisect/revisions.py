"""Revisions of a local git repository, each in a worktree of its own.

Never touches the user's working tree. Names of revisions are untrusted: git runs without a shell, and
without hooks of the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.bisect.model import Revision
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
                hint="`git log --oneline` lists revisions",
            )
        return answer.stdout.strip()

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
                hint="exchange --good and --bad, or use `git merge-base GOOD BAD` as --good",
            )
        return chain[place::-1]

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
    argv: Sequence[str] = ("git", "-c", f"core.hooksPath={os.devnull}", *arguments)
    variables = {k: v for k, v in os.environ.items() if k not in _LOCATION_VARIABLES}
    try:
        return capture(argv, folder=folder, variables={**variables, "LC_ALL": "C.UTF-8"})
    except FileNotFoundError as error:
        raise MissingTool("git is not installed", hint="install git") from error

"""Ask a git tree what it is. Changes nothing, not even the index."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["commit_of", "is_dirty", "submodule_commits"]


def commit_of(tree: Path) -> str:
    """The commit that is checked out; empty when the tree is no repository of its own."""
    # Without this git would answer for a repository further up.
    if not (tree / ".git").exists():
        return ""
    return _git(tree, "rev-parse", "--verify", "HEAD^{commit}") or ""


def is_dirty(tree: Path) -> bool:
    """Whether the tree holds changes or files that are in no commit."""
    return bool(_git(tree, "status", "--porcelain", "--untracked-files=normal"))


def submodule_commits(tree: Path) -> dict[str, str]:
    """Path of each submodule, nested ones too, and the commit that is checked out in it."""
    say = 'printf "%s\\t%s\\n" "$displaypath" "$(git rev-parse HEAD)"'
    text = _git(tree, "submodule", "--quiet", "foreach", "--recursive", say) or ""
    pairs = (line.rpartition("\t") for line in text.splitlines())
    return {path: commit for path, _, commit in pairs if path}


def _git(tree: Path, *arguments: str) -> str | None:
    """What git prints; None when it fails or is not here."""
    # Root may look at the tree of another user; nothing of the tree is executed by these.
    argv = ("git", "-c", "safe.directory=*", "-C", str(tree), *arguments)
    try:
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None

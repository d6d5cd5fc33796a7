"""Small git projects whose program changes from one revision on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**variables, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()


def make_project(
    folder: Path, revisions: Sequence[Mapping[str, str]], subjects: Sequence[str] = ()
) -> list[str]:
    """Create a repository with one commit for each mapping of file names to texts; return commits."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "A Tester")
    git(folder, "config", "user.email", "tester@example.invalid")
    commits = []
    for number, files in enumerate(revisions):
        for name, text in {**files, "number": str(number)}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git(folder, "add", "-A")
        subject = subjects[number] if subjects else f"change {number}"
        git(folder, "commit", "-q", "-m", subject)
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def printing(seconds: float) -> dict[str, str]:
    """Return a program that prints a time."""
    return {"bench.sh": f"echo noise\necho torchyard: {seconds}\n"}

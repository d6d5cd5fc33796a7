"""The shell steps of the GitHub action, and a small repository to run them on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

yaml: Final = pytest.importorskip("yaml")
ROOT: Final = Path(__file__).parents[2]
ACTION: Final = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
GITLAB: Final = yaml.safe_load((ROOT / "ci" / "gitlab" / "torchyard.yml").read_text("utf-8"))
STEPS: Final[list[Any]] = ACTION["runs"]["steps"]
INPUT: Final = re.compile(r"\$\{\{ (?:inputs\.(?P<name>[a-z-]+)|runner\.(?P<runner>temp)) \}\}")


def variables_of(step: Any, folder: Path, inputs: dict[str, str]) -> dict[str, str]:
    """Return the environment of a step, as GitHub sets it."""
    defaults = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}

    def value(match: re.Match[str]) -> str:
        return str(folder) if match["runner"] else {**defaults, **inputs}[match["name"]]

    return {name: INPUT.sub(value, text) for name, text in step["env"].items()}


def run_steps(repository: Path, folder: Path, **inputs: str) -> tuple[int, str]:
    """Run the steps of the action in the repository, until one fails."""
    output = ""
    code = 0
    for step in STEPS:
        if code and step.get("if") != "always()":
            continue
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=repository,
            env={
                **os.environ,
                **variables_of(step, folder, {"python": sys.executable, **inputs}),
                "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
                "TORCHYARD_HOME": str(folder / "home"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        output += done.stdout + done.stderr
        code = code or done.returncode
    return code, output


def git(repository: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *names, *words], cwd=repository, check=True, capture_output=True)


WORKLOAD = """
import os
import torch
import library

with open(os.path.join(os.environ["LOADED"]), "a") as file:
    file.write(f"{os.path.realpath(__file__)} {os.path.realpath(library.__file__)}\\n")

class Net(torch.nn.Module):
    def forward(self, x):
        return library.work(x)

def make():
    return Net(), (torch.randn(64, 64),)
"""
LIBRARY = """
def work(x):
    for _ in range(20):
        y = x @ x
    return y
"""


def make_repository(folder: Path) -> Path:
    """Return a project with one commit."""
    (folder / "src").mkdir(parents=True)
    (folder / "benchmarks").mkdir()
    (folder / "src" / "library.py").write_text(LIBRARY)
    (folder / "benchmarks" / "net.py").write_text(WORKLOAD)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def commit(repository: Path, file: str, text: str) -> None:
    (repository / file).write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")

"""Fixtures for tests of environments: steps run by real processes, fake programs on PATH."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchyard.builds.plan import Command, Step, WriteFile
from torchyard.builds.sandbox import Sandbox

Perform = Callable[..., str]
MakeProgram = Callable[..., Path]


@pytest.fixture
def perform(tmp_path: Path) -> Perform:
    """Do what a step says, with exactly its variables and those added; returns the output."""

    def perform_step(step: Step, *, folder: Path, added: Mapping[str, str] | None = None) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        heard = []
        for action in step.actions:
            if isinstance(action, WriteFile):
                Path(action.path).write_text(action.text)
                continue
            assert isinstance(action, Command)
            variables = {**dict(step.variables), **dict(action.variables), **(added or {})}
            root = step.root if action.inside_root else ""
            argv, variables = Sandbox(root=root).command(
                action.argv, folder=str(folder), variables=variables
            )
            result = subprocess.run(
                argv,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            heard.append(result.stdout)
            assert result.returncode == 0, f"{step.name}: {action.argv}\n{result.stdout}"
        for path in step.creates:
            assert Path(path).exists(), f"{step.name} did not make {path}"
        return "".join(heard)

    return perform_step


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for fake programs; empty."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


@pytest.fixture
def make_program(programs: Path) -> MakeProgram:
    """Write an executable shell script that first notes how it was called."""

    def make(name: str, body: str = "") -> Path:
        path = programs / name
        calls = programs / f"{name}.calls"
        path.write_text(f"#!/bin/sh\nset -eu\nprintf '%s\\n' \"$*\" >>'{calls}'\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def calls(programs: Path) -> Callable[[str], list[str]]:
    """How a fake program was called so far."""

    def read(name: str) -> list[str]:
        file = programs / f"{name}.calls"
        return file.read_text().splitlines() if file.exists() else []

    return read

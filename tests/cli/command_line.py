"""Run the program in tests: in this process for speed, or in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from torchyard.cli.main import run


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object on stdout; the command must have succeeded."""
        assert self.code == 0, self.err
        document: dict[str, Any] = json.loads(self.out)
        return document


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> CompletedCommand:
    """Run a command line inside this process."""
    capsys.readouterr()
    code = run(list(arguments))
    captured = capsys.readouterr()
    return CompletedCommand(code=code, out=captured.out, err=captured.err)


def program(*arguments: str, cwd: Path | None = None, **variables: str) -> CompletedCommand:
    """Run a command line as its own process, without this process's colours and columns."""
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "FORCE_COLOR"}}
    completed = subprocess.run(
        [sys.executable, "-m", "torchyard", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
    )
    return CompletedCommand(code=completed.returncode, out=completed.stdout, err=completed.stderr)


def study_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """The study that `bench` would run, as plain values."""
    document = call(capsys, "bench", "--dry-run", "--json", *arguments).document
    assert document["schema"] == 1
    study = document["study"]
    assert isinstance(study, dict)
    return study

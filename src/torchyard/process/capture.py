"""Run a program to its end and return its output as text."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["capture"]


def capture(
    argv: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    limit_s: float | None = None,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program without input; a nonzero exit code does not raise.

    `variables` is the complete environment [default: that of this process]. With `together`,
    `stdout` also has the text of standard error. Raises OSError if the program cannot be started,
    and subprocess.TimeoutExpired after `limit_s`.
    """
    return subprocess.run(
        argv,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        timeout=limit_s,
        check=False,
    )

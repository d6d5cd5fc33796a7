"""Profilers that only note how they were called, run the program, and leave the files they are told to.

They stand in for tools that need a GPU. What they write is what the tests say the real ones write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Called", "FakeTool", "fake_tool"]

_BODY = """#!{python}
import json, os, subprocess, sys
notes = {notes!r}
words = sys.argv[1:]
with open(notes, "a") as file:
    file.write(json.dumps([words, dict(os.environ)]) + "\\n")
said = {said!r}
for key, text in said.items():
    if key in words:
        sys.stdout.write(text)
        sys.exit(0)
if "--version" in words:
    print({version!r})
    sys.exit(0)
refusal = {refusal!r}
if refusal:
    sys.stderr.write(refusal)
    sys.exit(255)
for pattern, text in {leaves!r}.items():
    for word in words:
        if pattern in word:
            path = word.split("=", 1)[-1] if word.startswith("-") else word
            path = path.replace("%%", "%") + {endings!r}.get(pattern, "")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
            break
starts = [n for n, word in enumerate(words) if os.path.basename(word).startswith("python")]
sys.exit(subprocess.call(words[starts[0]:]) if starts else 0)
"""


@dataclass(frozen=True)
class Called:
    """One call."""

    words: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class FakeTool:
    """A program in a folder that goes onto the PATH."""

    folder: Path
    notes: Path

    def calls(self) -> list[Called]:
        """Calls without those for the version."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        found: list[Any] = [json.loads(line) for line in lines]
        return [Called(*one) for one in found if "--version" not in one[0]]


def fake_tool(
    folder: Path,
    name: str,
    *,
    version: str = "fake 1.0",
    leaves: Mapping[str, str] | None = None,
    endings: Mapping[str, str] | None = None,
    said: Mapping[str, str] | None = None,
    refusal: str = "",
) -> FakeTool:
    """Write it. `leaves` is {part of a word that names a file: its text}; `said` answers to words."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / f"{name}.calls"
    program = folder / name
    program.write_text(
        _BODY.format(
            python=sys.executable,
            notes=str(notes),
            version=version,
            said=dict(said or {}),
            leaves=dict(leaves or {}),
            endings=dict(endings or {}),
            refusal=refusal,
        )
    )
    program.chmod(0o755)
    return FakeTool(folder=folder, notes=notes)

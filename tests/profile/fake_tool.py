"""Fake profilers: record their arguments, run the program, and write the given files.

They replace tools that need a GPU. The files have the contents that the tests specify.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BODY = """#!{python}
import json, os, subprocess, sys
notes = {notes!r}
words = sys.argv[1:]
with open(notes, "a") as file:
    file.write(json.dumps([words, dict(os.environ)]) + "\\n")
outputs = {outputs!r}
for key, text in outputs.items():
    if key in words:
        sys.stdout.write(text)
        sys.exit(0)
if "--version" in words:
    print({version!r})
    sys.exit(0)
error_text = {error_text!r}
if error_text:
    sys.stderr.write(error_text)
    sys.exit(255)
for pattern, text in {files!r}.items():
    for word in words:
        if pattern in word:
            path = word.split("=", 1)[-1] if word.startswith("-") else word
            path = path.replace("%%", "%") + {suffixes!r}.get(pattern, "")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
            break
starts = [n for n, word in enumerate(words) if os.path.basename(word).startswith("python")]
sys.exit(subprocess.call(words[starts[0]:]) if starts else 0)
"""


@dataclass(frozen=True)
class Called:
    """Arguments and environment of one call."""

    words: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class FakeTool:
    """A program in a folder that tests add to PATH."""

    folder: Path
    notes: Path

    def calls(self) -> list[Called]:
        """Calls without those for the version."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        calls: list[Any] = [json.loads(line) for line in lines]
        return [Called(*one) for one in calls if "--version" not in one[0]]


def fake_tool(
    folder: Path,
    name: str,
    *,
    version: str = "fake 1.0",
    files: Mapping[str, str] | None = None,
    suffixes: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    error_text: str = "",
) -> FakeTool:
    """Write the program.

    `files` maps a part of an argument that names a file to the text of that file; `outputs` maps
    an argument to the text on stdout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / f"{name}.calls"
    program = folder / name
    program.write_text(
        _BODY.format(
            python=sys.executable,
            notes=str(notes),
            version=version,
            outputs=dict(outputs or {}),
            files=dict(files or {}),
            suffixes=dict(suffixes or {}),
            error_text=error_text,
        )
    )
    program.chmod(0o755)
    return FakeTool(folder=folder, notes=notes)

"""Real pytest processes that load the plugin as an installed one: by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Session:
    """A finished session of pytest."""

    code: int
    output: str

    def line(self, start: str) -> str:
        """Return the line of the output that starts with the text."""
        lines = [line for line in self.output.splitlines() if line.startswith(start)]
        assert len(lines) == 1, self.output
        return lines[0]


def run_pytest(
    folder: Path, *arguments: str, files: dict[str, str] | None = None, **variables: str
) -> Session:
    """Run pytest in the folder, after writing files to it."""
    for name, text in (files or {}).items():
        (folder / name).write_text(text, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PYTEST")},
            "TORCHYARD_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(_installed(folder)), *_path()]),
            "COLUMNS": "80",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return Session(completed.returncode, completed.stdout + completed.stderr)


def _path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _installed(folder: Path) -> Path:
    """Return a folder of metadata with the entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    place = folder / "installed"
    metadata = place / "torchyard_entry_points-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchyard-entry-points\nVersion: 1\n"
    )
    lines = [f"{name} = {place}" for name, place in project["entry-points"]["pytest11"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return place

"""`torchyard site`: output and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call

Capture = pytest.CaptureFixture[str]


def test_it_says_where_the_site_is_and_what_changed(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    completed = call(capsys, "site", str(folder), "--home", str(tmp_path / "runs"))
    assert completed.code == 0
    assert completed.out == f"{folder / 'index.html'}\n"
    assert "files written, 0 unchanged, 0 removed" in completed.err
    assert (folder / "index.html").is_file()
    completed = call(capsys, "site", str(folder), "--home", str(tmp_path / "runs"), "--json")
    document = json.loads(completed.out)
    assert document["schema"] == 1
    assert document["written"] == 0
    assert document["unchanged"] > 3
    assert document["index"] == str(folder / "index.html")


def test_a_folder_with_other_files(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("precious")
    completed = call(capsys, "site", str(tmp_path))
    assert completed.code == 2
    assert "is not a site of Torchyard" in completed.err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_folder_that_cannot_be_made(capsys: Capture) -> None:
    completed = call(capsys, "site", "/proc/nowhere/site")
    assert completed.code in {4, 5}
    assert "cannot write" in completed.err
    assert "start the run" not in completed.err
    assert "  hint: " in completed.err


def test_a_site_needs_no_server(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['starlette', 'uvicorn', 'anyio'])); "
        "from torchyard.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    arguments = ["site", str(tmp_path / "site"), "--home", str(tmp_path / "runs")]
    completed = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "site" / "index.html").is_file()

"""Selection of an interpreter: paths, virtual environments, commands on PATH."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchyard.core.variant_parts import find_python, parse_target
from torchyard.errors import UsageError


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A folder like a virtual environment: its python is a link, as in real ones."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path / "venv"


def find(text: str, folder: Path) -> str:
    return find_python(text, folder=folder, where="--target")


def test_a_path_a_folder_and_a_relative_path_mean_the_same(venv: Path) -> None:
    interpreter = str(venv / "bin" / "python")
    assert find(interpreter, Path("/")) == interpreter
    assert find(str(venv), Path("/")) == interpreter
    assert find("venv", venv.parent) == interpreter
    assert find("../venv/./bin/python", venv) == interpreter


def test_the_link_is_kept_because_following_it_leaves_the_environment(venv: Path) -> None:
    assert Path(find("venv", venv.parent)).is_symlink()


def test_the_home_folder_is_expanded(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(venv.parent))
    assert find("~/venv", Path("/")) == str(venv / "bin" / "python")


def test_command_is_searched_on_path(
    tmp_path: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(venv / "bin"))
    assert find("python", tmp_path / "nowhere") == str(venv / "bin" / "python")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the interpreter is missing"),
        ("nothing-here", "the interpreter 'nothing-here' was not found"),
        ("./nothing/here", "was not found"),
        (".", "is not a virtual environment"),
    ],
)
def test_invalid_interpreters(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(text, tmp_path)
    assert what in caught.value.what
    assert caught.value.hint


def test_a_target_has_a_name(venv: Path) -> None:
    def parse(text: str, default: str = "") -> tuple[str, str]:
        target = parse_target(text, folder=venv.parent, where="--target", default_name=default)
        return target.name, target.python

    python = str(venv / "bin" / "python")
    assert parse("new=venv") == ("new", python)
    assert parse("venv", "target") == ("target", python)
    with pytest.raises(UsageError, match="has no name"):
        parse("venv")
    with pytest.raises(UsageError, match="is not a valid name"):
        parse("=venv")


def test_a_path_with_an_equals_sign_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "a=b" / "bin").mkdir(parents=True)
    (tmp_path / "a=b" / "bin" / "python").symlink_to(sys.executable)
    text = str(tmp_path / "a=b")
    target = parse_target(text, folder=Path("/"), where="PYTHON", default_name="target")
    assert target.python == f"{text}/bin/python"

"""Search of programs and interpreters, real and fake."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.builds.environments.base_interpreter import find_interpreter, find_program
from torchyard.errors import UsageError

OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def fake_python(path: Path, version: str, *, has_pip: bool = True) -> Path:
    answer = f'["{version}", "cpython", {str(has_pip).lower()}]'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_program_on_the_users_path(programs: Path, make_program: Callable[..., Path]) -> None:
    path = make_program("some-tool")
    assert find_program("some-tool", {"PATH": str(programs)}) == str(path)
    assert find_program("some-tool", {"PATH": "/nowhere"}) == ""
    assert find_program("some-tool", {}) == ""


def test_system_programs_are_found_without_a_path() -> None:
    assert find_program("sh", {}).endswith("/sh")


def test_a_file_without_execute_permission_is_not_a_program(programs: Path) -> None:
    (programs / "some-tool").write_text("text")
    assert find_program("some-tool", {"PATH": str(programs)}) == ""


def test_the_default_is_the_interpreter_of_the_controller() -> None:
    found = find_interpreter("", {}, where="x")
    assert found.path == sys.executable
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.implementation == sys.implementation.name


def test_its_own_version_is_the_interpreter_of_the_controller(programs: Path) -> None:
    fake_python(programs / f"python{OWN_VERSION}", "0.0.0")
    found = find_interpreter(OWN_VERSION, {"PATH": str(programs)}, where="x")
    assert found.path == sys.executable


def test_version_on_path(programs: Path) -> None:
    path = fake_python(programs / "python3.77", "3.77.2", has_pip=False)
    found = find_interpreter("3.77", {"PATH": str(programs)}, where="x")
    assert (found.path, found.version, found.has_pip) == (str(path), "3.77.2", False)


def test_a_shim_of_pyenv_for_an_inactive_version(tmp_path: Path) -> None:
    shims, versions = tmp_path / "shims", tmp_path / "versions"
    shims.mkdir()
    (shims / "python3.77").write_text("#!/bin/sh\necho 'pyenv: command not found' >&2; exit 127\n")
    (shims / "python3.77").chmod(0o755)
    environ = {"PATH": str(shims)}
    assert find_interpreter("3.77", environ, where="x").version == "", "as if it were not installed"
    folder = versions / "3.77.5" / "bin"
    folder.mkdir(parents=True)
    path = fake_python(folder / "python3.77", "3.77.5")
    assert find_interpreter("3.77", environ, where="x").path == str(path)


def test_version_that_is_not_here_can_still_be_planned() -> None:
    found = find_interpreter("3.78", {"PATH": "/nowhere"}, where="x")
    assert (found.path, found.version) == ("python3.78", "")


def test_path_of_a_link_is_kept(programs: Path) -> None:
    """The python of a virtual environment is a link; following it would leave the environment."""
    link = programs / "python"
    link.symlink_to(sys.executable)
    assert find_interpreter(str(link), {}, where="x").path == str(link)


@pytest.mark.parametrize("named", ["python", "latest", "2.7", "3", "3.12.1"])
def test_name_that_is_neither(named: str) -> None:
    with pytest.raises(UsageError, match=r"pytorch: environment\.python") as caught:
        find_interpreter(named, {}, where="pytorch: environment.python")
    assert "3.12" in caught.value.hint


def test_path_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="not executable"):
            find_interpreter(str(path), {}, where="x")


@pytest.mark.parametrize("body", ["exit 3", "echo hello", "echo '[1]'"])
def test_program_that_is_no_python(body: str, programs: Path) -> None:
    path = programs / "python3.79"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    with pytest.raises(UsageError, match="is not a Python interpreter"):
        find_interpreter(str(path), {}, where="x")

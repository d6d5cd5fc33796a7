"""The manual page: valid for groff, with every command and option."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from torchyard.cli.commands import COMMANDS
from torchyard.cli.group import program
from torchyard.errors import EXIT_CODES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "man" / "torchyard.1"


@pytest.fixture(scope="module")
def shown() -> str:
    """The page as a terminal shows it, with single spaces."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-Kutf8", "-P-c", "-P-b", "-P-u", str(PAGE)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return " ".join(done.stdout.split())


def test_every_command_option_and_exit_code_is_on_the_page(shown: str) -> None:
    context = click.Context(program, info_name="torchyard")
    for name, (_, about) in COMMANDS.items():
        assert f"{name} {about}" in shown
        command = program.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.opts[-1] in shown
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in shown


def test_examples_can_be_copied(shown: str) -> None:
    assert "torchyard bench --only models/gpt" in shown
    assert "~/.local/share/torchyard" in shown
    assert "torchyard bench --note TEXT adds one at the start." in shown


def test_the_wheel_installs_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    data = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert data == {"docs/man/torchyard.1": "share/man/man1/torchyard.1"}
    assert PAGE.is_file()

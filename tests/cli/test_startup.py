"""`torchyard --help` is fast: it imports only what it shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.command_line import program
from torchyard import __version__
from torchyard.cli.commands import COMMANDS, root_help

HEAVY = ("numpy", "rich", "torch", "jinja2", "psutil")


def loaded_after(*arguments: str) -> set[str]:
    """The modules that are loaded when the command line has run."""
    code = (
        "import sys; from torchyard.cli.main import run; code = run(sys.argv[1:]); "
        "sys.stderr.write('\\n'.join(sys.modules)); sys.exit(code)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(completed.stderr.split())


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("--version",)])
def test_the_first_page_loads_no_library_at_all(arguments: tuple[str, ...]) -> None:
    loaded = loaded_after(*arguments)
    assert not loaded & {*HEAVY, "click", "dataclasses", "typing", "importlib.metadata"}
    assert not {name for name in loaded if name.startswith("torchyard.") and "cli" not in name}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_loads_click_only(command: str) -> None:
    loaded = loaded_after(command, "--help")
    assert not loaded & {*HEAVY}
    own = COMMANDS[command][0].partition(":")[0]
    modules = {location.partition(":")[0] for location, _ in COMMANDS.values()}
    # Some commands share a module, and a package is loaded with its modules.
    others = {name for name in modules if name != own and not own.startswith(f"{name}.")}
    assert not loaded & others


@pytest.mark.parametrize("arguments", [("workloads",), ("explain",)])
def test_light_commands_stay_light(arguments: tuple[str, ...]) -> None:
    assert not loaded_after(*arguments) & {*HEAVY}


def test_bench_without_running_stays_light() -> None:
    loaded = loaded_after("bench", "--only", "gpt", "--dry-run")
    assert not loaded & {*HEAVY}


def test_click_shows_the_same_first_page() -> None:
    from click.testing import CliRunner

    from torchyard.cli.group import program as group

    shown = CliRunner().invoke(group, ["--help"])
    assert shown.exit_code == 0
    assert shown.output == root_help()


def test_the_first_page_fits_and_names_every_command() -> None:
    page = root_help()
    assert max(len(line) for line in page.splitlines()) <= 80
    for name in COMMANDS:
        assert f"\n  {name} " in page


def test_every_command_of_the_table_can_be_loaded() -> None:
    import click

    from torchyard.cli.group import program as group

    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_the_version() -> None:
    assert program("--version").out == f"torchyard {__version__}\n"
    assert program("--debug", "--version").out == f"torchyard {__version__}\n"

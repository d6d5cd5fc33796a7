"""`torchyard build`: the group whose first word is a recipe or a command about builds."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.group import CommandTable, RunningGroup

__all__ = ["BUILD_COMMANDS", "build"]

BUILD_COMMANDS: Final[CommandTable] = {
    "recipes": ("torchyard.builds.commands.show:recipes", "list the recipes, or show one"),
    "list": ("torchyard.builds.commands.show:list_builds", "list the builds of this machine"),
    "show": ("torchyard.builds.commands.show:show", "show the record of a build"),
    "update": (
        "torchyard.builds.commands.change:update",
        "bring sources to the tip and build again",
    ),
    "rebuild": (
        "torchyard.builds.commands.change:rebuild",
        "compile what was edited, and install it",
    ),
    "clean": ("torchyard.builds.commands.change:clean", "remove objects, trees or a whole build"),
    "test": (
        "torchyard.builds.commands.change:test",
        "run a test file of the project and account for it",
    ),
    "lock": ("torchyard.builds.commands.show:lock", "write down the exact sources of a build"),
    "sbom": ("torchyard.builds.commands.show:sbom", "write the bill of materials of a build"),
    "explain": ("torchyard.builds.commands.show:explain", "say why a build failed, from its log"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard build pytorch --variant cpu-arm --plan         every command, nothing done
  torchyard build pytorch --variant trimmed
  torchyard build openblas --set USE_OPENMP=1
  torchyard build torchvision --version 0.21.0 --base .venv
  torchyard build ./mine.toml --jobs 4
  torchyard build explain build.log

Build PyTorch or a companion from a recipe. A second run does only what is not done; a run that
was killed goes on where it stopped.
"""


@click.group(
    cls=RunningGroup,
    table=BUILD_COMMANDS,
    run="torchyard.builds.commands.run:run",
    run_help="`torchyard build RECIPE --help` shows the options of a build.",
    name="build",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="RECIPE|COMMAND [OPTIONS]",
)
def build() -> None:
    """Build from recipes."""

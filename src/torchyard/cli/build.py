"""`torchyard build`: the group whose first word is a recipe, or one of the commands about builds."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.lazy_group import CommandTable, RunningGroup

__all__ = ["BUILD_COMMANDS", "build"]

BUILD_COMMANDS: Final[CommandTable] = {
    "recipes": ("torchyard.cli.build_recipes:recipes", "list the recipes, or show one"),
    "list": ("torchyard.cli.build_list:list_builds", "list the builds of this machine"),
    "show": ("torchyard.cli.build_list:show", "show the record of a build"),
    "update": ("torchyard.cli.build_change:update", "bring sources to the tip and build again"),
    "rebuild": ("torchyard.cli.build_change:rebuild", "compile what was edited, and install it"),
    "clean": ("torchyard.cli.build_change:clean", "remove objects, trees or a whole build"),
    "test": ("torchyard.cli.build_test:test", "run a test file of the project and account for it"),
    "lock": ("torchyard.cli.build_lock:lock", "write down the exact sources of a build"),
    "sbom": ("torchyard.cli.build_lock:sbom", "write the bill of materials of a build"),
    "explain": ("torchyard.cli.build_explain:explain", "say why a build failed, from its log"),
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
    run="torchyard.cli.build_run:run",
    run_help="`torchyard build RECIPE --help` shows the options of a build.",
    name="build",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="RECIPE|COMMAND [OPTIONS]",
)
def build() -> None:
    """Build from recipes."""

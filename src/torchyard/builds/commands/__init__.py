"""`torchyard build`: the command group; its first argument is a recipe or a subcommand."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.group import CommandTable, RunningGroup

BUILD_COMMANDS: Final[CommandTable] = {
    "recipes": ("torchyard.builds.commands.show:recipes", "list the recipes, or show one"),
    "list": ("torchyard.builds.commands.show:list_builds", "list the builds of this machine"),
    "show": ("torchyard.builds.commands.show:show", "show the record of a build"),
    "update": (
        "torchyard.builds.commands.change:update",
        "fetch the newest sources and rebuild",
    ),
    "rebuild": (
        "torchyard.builds.commands.change:rebuild",
        "compile edited files and install the result",
    ),
    "clean": (
        "torchyard.builds.commands.change:clean",
        "remove objects, working copies or a whole build",
    ),
    "test": (
        "torchyard.builds.commands.change:test",
        "run test files of the project and report every test",
    ),
    "lock": (
        "torchyard.builds.commands.show:lock",
        "write a lock file with the exact sources of a build",
    ),
    "sbom": (
        "torchyard.builds.commands.show:sbom",
        "write the software bill of materials of a build",
    ),
    "wheels": (
        "torchyard.builds.commands.show:wheels",
        "copy wheels with the libraries that they need",
    ),
    "explain": (
        "torchyard.builds.commands.show:explain",
        "explain from its log why a build failed",
    ),
}
"""Name -> (location of the click command, one-line help)."""

_HELP = """
\b
Examples:
  torchyard build pytorch --variant cpu-arm --plan         print every command, run none
  torchyard build pytorch --variant trimmed
  torchyard build openblas --set USE_OPENMP=1
  torchyard build torchvision --version 0.21.0 --base .venv
  torchyard build ./mine.toml --jobs 4
  torchyard build explain build.log

Build PyTorch or a companion library from a recipe. Finished steps are not repeated; an interrupted
build resumes where it stopped.
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

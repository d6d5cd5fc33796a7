"""`torchyard build`: the group whose first word is a recipe, or one of the commands about builds."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["BUILD_COMMANDS", "build"]

BUILD_COMMANDS: Final[dict[str, tuple[str, str]]] = {
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
_RUN: Final = "run"
"""What happens when none of them is named."""

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


class RecipeGroup(click.Group):
    """Takes an unknown first word for a recipe's name and hands everything to `run`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands about builds; `run` is what happens without one."""
        return list(BUILD_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        place = "torchyard.cli.build_run:run"
        if cmd_name in BUILD_COMMANDS:
            place = BUILD_COMMANDS[cmd_name][0]
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A command of the table, or `run` with all words."""
        if args and (args[0] in BUILD_COMMANDS or args[0] == _RUN):
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return _RUN, self.get_command(ctx, _RUN), args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before a recipe belong to `run`: only --help is the group's own."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One line for each, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in BUILD_COMMANDS.items()])
        formatter.write_paragraph()
        formatter.write_text("`torchyard build RECIPE --help` shows the options of a build.")


@click.group(
    cls=RecipeGroup,
    name="build",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="RECIPE|COMMAND [OPTIONS]",
)
def build() -> None:
    """Build from recipes."""

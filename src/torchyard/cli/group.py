"""The click group that knows its commands by name and loads one when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from torchyard import __version__
from torchyard.cli.commands import COMMANDS, root_help
from torchyard.errors import UsageError

__all__ = ["LazyGroup", "program"]


class LazyGroup(click.Group):
    """A group over the table in `commands.py`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Every command, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was asked for; the nearest name when there is none."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from torchyard.core.records import nearest_hint

            raise UsageError(
                f"there is no command {args[0]!r}",
                hint=nearest_hint(args[0], list(COMMANDS), what="command"),
            )
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """The page that is also printed without click."""
        return root_help().rstrip("\n")


_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


@click.group(cls=LazyGroup, name="torchyard", context_settings=_SETTINGS, no_args_is_help=True)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
@click.version_option(__version__, prog_name="torchyard", message="%(prog)s %(version)s")
def program() -> None:
    """Compare two ways to run PyTorch with statistics that hold on noisy machines."""

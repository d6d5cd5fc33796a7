"""`torchyard values`: the group whose first word is a script, or one of the commands about profiles."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["VALUES_COMMANDS", "values"]

VALUES_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "sweep": ("torchyard.cli.values_sweep:sweep", "sweep the operators of a torch for wasted work"),
    "show": ("torchyard.cli.values_show:show", "show a profile again, in any format"),
}
"""Name -> (where the click command is, one line about it)."""
_RUN: Final = "run"

_HELP = """
\b
Examples:
  torchyard values train.py --epochs 1
  torchyard values --deep --html waste.html train.py
  torchyard values --workload models/gpt --mode training
  torchyard values --fail-on proven,share=1% train.py
  torchyard values show latest --format html --output waste.html

Find wasted work in a PyTorch program by its values: writes that change nothing, zeros that are
overwritten, copies of what is there, types that are too wide. Everything after SCRIPT is the
script's own.
"""


class ScriptGroup(click.Group):
    """Takes a first word that is no command for a script, and hands everything to `run`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands about profiles."""
        return list(VALUES_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        place = "torchyard.cli.values_run:run"
        if cmd_name in VALUES_COMMANDS:
            place = VALUES_COMMANDS[cmd_name][0]
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A command of the table, or `run` with all words."""
        if args and (args[0] in VALUES_COMMANDS or args[0] == _RUN):
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return _RUN, self.get_command(ctx, _RUN), args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before a script belong to `run`: only --help is the group's own."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One line for each, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in VALUES_COMMANDS.items()])
        formatter.write_paragraph()
        formatter.write_text("`torchyard values run --help` shows the options of a profile.")


@click.group(cls=ScriptGroup, help=_HELP)
def values() -> None:
    """Find wasted work by values."""

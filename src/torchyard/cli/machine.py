"""`torchyard machine`: see, quiet and restore this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["MACHINE_COMMANDS", "machine"]

MACHINE_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "show": ("torchyard.cli.machine_show:show", "facts and state, and whether it is fit"),
    "tune": ("torchyard.cli.machine_tune:tune", "quiet the machine, for good or for one command"),
    "restore": ("torchyard.cli.machine_restore:restore", "put back exactly what a tune found"),
    "boot": ("torchyard.cli.machine_boot:boot", "lines for the boot loader, and check them"),
    "audit": ("torchyard.cli.machine_audit:audit", "how noisy is it now, and what disturbs it"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard machine show                       facts, state, advice; exit code 6 when unfit
  torchyard machine audit --seconds 60         the smallest difference that can be seen here
  sudo torchyard machine tune --dry-run        what would be changed, and what cannot be
  sudo torchyard machine tune -- python train.py
  sudo torchyard machine restore

Look without root, change only what can be put back, put back what was found.
"""


class LazyGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """In the order of the table."""
        return list(MACHINE_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in MACHINE_COMMANDS:
            return None
        module, _, attribute = MACHINE_COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{MACHINE_COMMANDS[cmd_name][0]} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One line for each, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in MACHINE_COMMANDS.items()])


@click.group(cls=LazyGroup, help=_HELP)
def machine() -> None:
    """See, quiet and restore this machine."""

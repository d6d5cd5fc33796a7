"""The `torchyard machine` command group: inspect, quiet, restore and audit this machine.

Subcommands are named as text and loaded on use: `audit` and `quiet` live in the `audit` package and
`peak` in `bench`, because they measure.
"""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.group import CommandTable, LazyGroup

__all__ = ["MACHINE_COMMANDS", "machine"]

MACHINE_COMMANDS: Final[CommandTable] = {
    "show": ("torchyard.machine.command:show", "facts and state, and whether it is fit"),
    "tune": (
        "torchyard.audit.command_quiet:tune",
        "quiet the machine, for good or for one command",
    ),
    "restore": ("torchyard.machine.command:restore", "put back exactly what a tune found"),
    "boot": ("torchyard.machine.command:boot", "lines for the boot loader, and check them"),
    "audit": ("torchyard.audit.command:audit", "how noisy is it now, and what disturbs it"),
    "peak": ("torchyard.bench.roofline.command:peak", "the highest rates of arithmetic and memory"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard machine show                       facts, state, advice; exit code 6 when unfit
  torchyard machine audit --seconds 60         the smallest difference that can be seen here
  torchyard machine peak                       what kernels are held against
  sudo torchyard machine tune --dry-run        what would be changed, and what cannot be
  sudo torchyard machine tune -- python train.py
  sudo torchyard machine restore

Look without root, change only what can be put back, put back what was found.
"""


@click.group(cls=LazyGroup, table=MACHINE_COMMANDS, help=_HELP)
def machine() -> None:
    """See, quiet and restore this machine."""

"""The `torchyard machine` command group: inspect, quiet, restore and audit this machine.

Subcommands are named as text and loaded on use: `audit` and `quiet` live in the `audit` package and
`peak` in `bench`, because they measure.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from torchyard.cli.group import CommandTable, LazyGroup

MACHINE_COMMANDS: Final[CommandTable] = {
    "show": (
        "torchyard.machine.command:show",
        "show facts, current state and advice; is it fit for benchmarks?",
    ),
    "quiet": (
        "torchyard.audit.command_quiet:quiet",
        "reduce noise, for one command or until `restore`",
    ),
    "restore": ("torchyard.machine.command:restore", "restore the settings that `quiet` changed"),
    "boot": ("torchyard.machine.command:boot", "print kernel boot parameters, and check them"),
    "audit": ("torchyard.audit.command:audit", "measure the noise and name its sources"),
    "peak": (
        "torchyard.bench.roofline.command:peak",
        "measure peak arithmetic throughput and memory bandwidth",
    ),
}
"""Name -> (location of the click command, one-line summary)."""

DEPRECATED_NAMES: Final = {"tune": "quiet"}
"""Old name -> present name; accepted with a note on stderr and listed nowhere."""

_HELP = """
\b
Examples:
  torchyard machine show                       facts, state and advice; exit code 6 if unfit
  torchyard machine audit --seconds 60         the smallest difference resolvable here
  torchyard machine peak                       the peak rates that kernels are compared with
  sudo torchyard machine quiet --dry-run       what would be changed, and what cannot be
  sudo torchyard machine quiet -- python train.py
  sudo torchyard machine restore

Inspect this machine, reduce its noise and restore it. Inspection needs no root. `quiet` changes
only settings that can be restored, and `restore` writes the original values back.
"""


class _MachineGroup(LazyGroup):
    """The group, with the names of earlier releases."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Replace a deprecated name before the lookup."""
        name = DEPRECATED_NAMES.get(args[0]) if args else None
        if name is not None:
            if not ctx.resilient_parsing:  # shell completion prints nothing
                sys.stderr.write(
                    f"`torchyard machine {args[0]}` is deprecated: use `torchyard machine {name}`\n"
                )
            args = [name, *args[1:]]
        return super().resolve_command(ctx, args)


@click.group(cls=_MachineGroup, table=MACHINE_COMMANDS, help=_HELP)
def machine() -> None:
    """Inspect, quiet and restore this machine."""

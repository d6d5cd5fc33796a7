"""`torchyard values`: the group whose first word is a script, or one of the commands about profiles."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.lazy_group import CommandTable, RunningGroup

__all__ = ["VALUES_COMMANDS", "values"]

VALUES_COMMANDS: Final[CommandTable] = {
    "sweep": ("torchyard.cli.values_sweep:sweep", "sweep the operators of a torch for wasted work"),
    "show": ("torchyard.cli.values_show:show", "show a profile again, in any format"),
}
"""Name -> (where the click command is, one line about it)."""

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


@click.group(
    cls=RunningGroup,
    table=VALUES_COMMANDS,
    run="torchyard.cli.values_run:run",
    run_help="`torchyard values run --help` shows the options of a profile.",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="SCRIPT|COMMAND [OPTIONS]",
)
def values() -> None:
    """Find wasted work by values."""

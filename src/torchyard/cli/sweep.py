"""`torchyard sweep`: the group whose first word is a study file, or one of the commands about sweeps."""

from __future__ import annotations

from typing import Final

import click

from torchyard.cli.lazy_group import CommandTable, RunningGroup

__all__ = ["SWEEP_COMMANDS", "sweep"]

SWEEP_COMMANDS: Final[CommandTable] = {
    "list": ("torchyard.cli.sweep_list:list_sweeps", "list sweeps and how far they are"),
    "show": ("torchyard.cli.sweep_show:show", "show every cell of a sweep: state, reason, log"),
    "report": ("torchyard.cli.sweep_report:report", "what a sweep says as a whole, in any format"),
    "cancel": ("torchyard.cli.sweep_cancel:cancel", "end what a sweep has running or queued"),
}
"""Name -> (where the click command is, one line about it)."""

_HELP = """
\b
Examples:
  torchyard sweep --suites models,kernels --plan
  torchyard sweep --suites timm,huggingface --modes training,inference --precisions float32,amp
  torchyard sweep nightly.toml --shard 1/4
  torchyard sweep --suites timm --executor slurm --partition gpu --gpus 1 --at-most 8
  torchyard sweep --resume latest
  torchyard sweep show latest

Whole suites times modes, precisions and backends. Each workload in each precision is a cell, measured
as `torchyard bench` does. What has finished is never repeated: after Ctrl-C, a crash or a reboot,
--resume goes on. A cell that crashed, hung or ran out of memory is a row with its reason and log.
"""


@click.group(
    cls=RunningGroup,
    table=SWEEP_COMMANDS,
    run="torchyard.cli.sweep_start:run",
    run_help="`torchyard sweep run --help` shows the options of a sweep.",
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="STUDY.toml|COMMAND [OPTIONS]",
)
def sweep() -> None:
    """Measure whole suites."""

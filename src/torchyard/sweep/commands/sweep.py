"""`torchyard sweep`, followed by a study file or a subcommand, and the hidden `sweep-cell`.

Executors run `sweep-cell` to measure one cell. It exits with 0 if the outcome of the cell is recorded
in the folder, with 130 if it was interrupted, and with another code after a failure that may not be
recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from torchyard.cli.group import CommandTable, RunningGroup
from torchyard.cli.options import FOLDER
from torchyard.cli.output import common_options, print_json, print_message

SWEEP_COMMANDS: Final[CommandTable] = {
    "list": ("torchyard.sweep.commands.manage:list_sweeps", "list sweeps and their progress"),
    "show": (
        "torchyard.sweep.commands.manage:show",
        "show the cells of a sweep: state, reason, log",
    ),
    "report": (
        "torchyard.sweep.commands.manage:report",
        "summarize a sweep, in any format",
    ),
    "cancel": (
        "torchyard.sweep.commands.manage:cancel",
        "cancel running and queued cells of a sweep",
    ),
}
"""Name -> (where the click command is, one line about it)."""

_SWEEP_HELP = """
\b
Examples:
  torchyard sweep --suites models,kernels --plan
  torchyard sweep --suites timm,huggingface --modes training,inference --precisions float32,amp
  torchyard sweep nightly.toml --shard 1/4
  torchyard sweep --suites timm --executor slurm --partition gpu --gpus 1 --at-most 8
  torchyard sweep --resume latest
  torchyard sweep show latest

Measure whole suites in several modes, precisions and backends. Each workload in each precision is a
cell, which is measured like `torchyard bench`. Finished cells are never repeated: after Ctrl-C, a
crash or a reboot, --resume continues. A cell that crashed, hung or ran out of memory becomes a row
with the reason and the log.
"""


@click.group(
    cls=RunningGroup,
    table=SWEEP_COMMANDS,
    run="torchyard.sweep.commands.run:run",
    run_help="`torchyard sweep run --help` shows the options of a sweep.",
    help=_SWEEP_HELP,
    no_args_is_help=True,
    subcommand_metavar="STUDY.toml|COMMAND [OPTIONS]",
)
def sweep() -> None:
    """Measure whole suites."""


_CELL_HELP = """
\b
Examples:
  torchyard sweep-cell FOLDER 0007-timm-resnet50-training-float32

Measure one cell of the sweep in FOLDER, in this process. Executors run this.
"""


@click.command("sweep-cell", help=_CELL_HELP, hidden=True)
@click.argument("folder", type=FOLDER)
@click.argument("cell")
@common_options
def sweep_cell(folder: Path, cell: str, as_json: bool) -> int:
    """Measure one cell."""
    from torchyard.cli.invoke import INTERRUPTED
    from torchyard.core.events import Event
    from torchyard.sweep.cell import end_with_driver, place_of_job, run_cell, stop_on_signals
    from torchyard.sweep.folder import SweepFolder

    sweep = SweepFolder.open(folder)
    stop_on_signals()
    if not end_with_driver():
        return INTERRUPTED

    def listen(event: Event) -> None:
        if event.kind in ("warning", "comparison", "phase"):
            print_message(f"{event.workload}: {event.text}" if event.workload else event.text)

    outcome = run_cell(sweep, cell, place=place_of_job(), listener=listen)
    if as_json:
        print_json({"cell": cell, "outcome": outcome})
    return 0

"""`torchyard sweep-cell`: measure one cell of a sweep. What executors run; not for people.

Ends with 0 when the folder says how the cell went, whatever its rows say; with 130 when it was
interrupted; with another code when there was trouble that the folder may not know of.
"""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import common_options, print_json, talk

__all__ = ["sweep_cell"]

_HELP = """
\b
Examples:
  torchyard sweep-cell FOLDER 0007-timm-resnet50-training-float32

Measure one cell of the sweep in FOLDER, in this process. Executors run this.
"""


@click.command("sweep-cell", help=_HELP, hidden=True)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("cell")
@common_options
def sweep_cell(folder: Path, cell: str, as_json: bool) -> int:
    """Run a cell."""
    from torchyard.cli.invoke import INTERRUPTED
    from torchyard.core.events import Event
    from torchyard.results.sweep_folder import SweepFolder
    from torchyard.workflow.sweep_cell import (
        end_with_driver,
        place_of_job,
        run_cell,
        stop_on_signals,
    )

    sweep = SweepFolder.open(folder)
    stop_on_signals()
    if not end_with_driver():
        return INTERRUPTED

    def listen(event: Event) -> None:
        if event.kind in ("warning", "comparison", "phase"):
            talk(f"{event.workload}: {event.text}" if event.workload else event.text)

    outcome = run_cell(sweep, cell, place=place_of_job(), listener=listen)
    if as_json:
        print_json({"cell": cell, "outcome": outcome})
    return 0

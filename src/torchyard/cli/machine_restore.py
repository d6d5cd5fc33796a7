"""`torchyard machine restore`: put back exactly what a tune found."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import common_options, print_data, print_json, printable
from torchyard.cli.wish_options import machine_at, root_option

__all__ = ["restore"]

_HELP = """
\b
Examples:
  sudo torchyard machine restore
  sudo torchyard machine restore --json

Put back what a standing tune, or one that was killed, found on this machine. Values are read back
after writing. Ends with exit code 0 when everything is back, 3 when there was nothing to restore
and 5 when something could not be put back: that stays in the journal for the next try.
"""


@click.command(help=_HELP)
@root_option
@common_options
def restore(root: Path, as_json: bool) -> int:
    """Restore this machine."""
    from torchyard.cli.tune_text import restored_json, restored_text
    from torchyard.errors import StepFailed
    from torchyard.machine.restoring import restore as put_back

    with machine_at(root, gpus=False) as machine:
        restored = put_back(machine)
    if as_json:
        print_json({"restore": restored_json(restored)})
    else:
        print_data(printable(restored_text(restored)))
    return 0 if restored.complete else StepFailed.exit_code

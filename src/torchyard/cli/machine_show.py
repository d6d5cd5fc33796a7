"""`torchyard machine show`: facts and state, and whether the machine is fit for benchmarks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable
from torchyard.cli.wish_options import machine_at, root_option

if TYPE_CHECKING:
    from torchyard.machine.file_tree import FileTree

__all__ = ["show"]

_HELP = """
\b
Examples:
  torchyard machine show
      facts, state and ranked advice
  torchyard machine show --json
      the same for a program
  torchyard machine show --root ./copy
      another machine, from a copy of its /proc and /sys

Look at everything that makes benchmarks unsteady. Changes nothing and needs no root; what cannot be
read is shown with the reason. Watches the machine for half a second. Ends with exit code 0 when
it is fit for benchmarks, with or without advice, and 6 when numbers taken now must not be believed:
other programs are busy, the host takes time, memory is short, heat or a battery holds clocks down.
"""


@click.command(help=_HELP)
@root_option
@common_options
def show(root: Path, as_json: bool) -> int:
    """Show this machine."""
    from torchyard.cli.machine_text import machine_json, machine_text
    from torchyard.errors import Untrustworthy
    from torchyard.machine.view import view_machine

    with machine_at(root, gpus=True) as machine:
        view = view_machine(machine)
        tune, notes = _tune(machine.files)
    if as_json:
        print_json({"machine": machine_json(view, tune=tune)})
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_data(printable(machine_text(view, notes=notes, width=width)))
    return 0 if view.fit else Untrustworthy.exit_code


def _tune(files: FileTree) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The tune that is in force, as plain values and in a sentence."""
    from torchyard.errors import TorchyardError
    from torchyard.machine.journal import boot_of, journal_folder, read_journal
    from torchyard.results.owner import is_gone

    try:
        text = read_journal(journal_folder(files))
    except TorchyardError as error:  # looking must work on a machine that is in trouble
        return {"trouble": error.what}, (f"{error.what}. {error.hint}".rstrip(". ") + ".",)
    if text is None:
        return None, ()
    if text.boot != boot_of(files):
        state, hint = "undone by a restart of the machine", "sudo torchyard machine restore"
    elif text.mode == "standing" and text.tuned:
        state, hint = "in force", "sudo torchyard machine restore"
    elif files.live and not is_gone(text.owner):
        state, hint = "in force for a running command", ""
    else:
        state, hint = "cut off and not put back", "sudo torchyard machine restore"
    knobs = list(dict.fromkeys(setting.knob for setting in text.settings if setting.changes))
    said = {"state": state, "mode": text.mode, "started": text.started, "knobs": knobs}
    sentence = f"a tune is {state} ({text.who}): {', '.join(knobs) or 'no knob'}"
    return said, (sentence + (f"; {hint}" if hint else ""),)

"""`torchyard results note`: keep a note with a run."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_json, talk

__all__ = ["note"]

_HELP = """
\b
Examples:
  torchyard results note latest "the first run after the update of the kernel"
  torchyard results note 20250131T12 "machine was hot"

Keep a note with a run that has ended. Lists, reports and histories show it. `torchyard bench
--note TEXT` keeps one from the start.
"""


@click.command(help=_HELP)
@click.argument("run")
@click.argument("text")
@common_options
def note(run: str, text: str, as_json: bool) -> None:
    """Add a note."""
    from pathlib import Path

    from torchyard.cli.results_store import fresh_store
    from torchyard.results.run_changes import add_note

    with fresh_store() as store:
        found = store.run(run)
        notes = add_note(Path(found.folder), text)
        store.refresh()
    if as_json:
        print_json({"run": found.id, "notes": list(notes)})
    else:
        talk(f"{found.id} has {len(notes)} note{'s' if len(notes) > 1 else ''}")

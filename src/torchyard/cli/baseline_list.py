"""`torchyard baseline list`, `show` and `delete`."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk

__all__ = ["delete", "list_all", "show"]


@click.command(name="list", help="List the baselines.\n\n\b\nExample:\n  torchyard baseline list")
@common_options
def list_all(as_json: bool) -> None:
    """Every baseline with its runs."""
    from torchyard.core.records import encode
    from torchyard.results.baselines import list_baselines

    found, damaged = list_baselines()
    for error in damaged:
        talk(f"warning: {error.what}")
    if as_json:
        print_json(
            {
                "baselines": [encode(one) for one in found],
                "damaged": [error.what for error in damaged],
            }
        )
        return
    if not found:
        talk("there is no baseline yet; `torchyard baseline save NAME` makes one")
        return
    width = max(len(one.name) for one in found)
    for one in found:
        runs = one.runs[-1] if len(one.runs) == 1 else f"{len(one.runs)} runs, {one.runs[-1]} last"
        line = f"{one.name:<{width}}  {one.saved}  {runs}  {one.note}"
        print_data(printable(line.rstrip()))


@click.command(help="Show what a baseline names.\n\n\b\nExample:\n  torchyard baseline show main")
@click.argument("name")
@common_options
def show(name: str, as_json: bool) -> None:
    """The runs of a baseline, and whether they are there."""
    from torchyard.core.records import encode
    from torchyard.results.baselines import read_baseline, runs_of

    saved = read_baseline(name)
    runs = runs_of(saved)
    if as_json:
        print_json({"baseline": encode(saved)})
        return
    print_data(printable(f"{saved.name}, saved {saved.saved}"))
    if saved.note:
        print_data(printable(saved.note))
    for run in runs:
        facts = f"{run.state}, {len(run.comparisons)} comparisons, {run.study.name}"
        print_data(printable(f"  {run.id}  {facts}"))


@click.command(
    help="Forget a name; its runs stay.\n\n\b\nExample:\n  torchyard baseline delete main"
)
@click.argument("name")
@common_options
def delete(name: str, as_json: bool) -> None:
    """Remove the file of the name."""
    from torchyard.results.baselines import delete_baseline

    delete_baseline(name)
    if as_json:
        print_json({"deleted": name})
    else:
        print_data(f"deleted {name}")

"""`torchyard baseline save`, `list`, `show` and `delete`: named runs for later comparisons."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.results.commands.options import find_run

_HELP = """
\b
Examples:
  torchyard baseline save main                          the latest run
  torchyard baseline save main 20250101T09 20250102T09
  torchyard baseline save main --file ci/base.json      to keep in a repository

Give runs a name. With --file, their comparisons and facts are written to a file instead, without
samples, logs, paths and host names; `compare` and `gate` take the file where they take a name.
"""


@click.command(help=_HELP)
@click.argument("name")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--note", default="", metavar="TEXT", help="Why these runs.")
@click.option("--replace", "replace_existing", is_flag=True, help="Save over an earlier one.")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a file that holds the comparisons, instead of a name.",
)
@common_options
def save(
    name: str,
    runs: tuple[str, ...],
    note: str,
    replace_existing: bool,
    path: Path | None,
    as_json: bool,
) -> None:
    """Read the runs and keep them as a baseline."""
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo, UsageError
    from torchyard.results.baselines import check_baseline_name, save_baseline, write_baseline_file
    from torchyard.results.run_reader import read_run

    check_baseline_name(name)
    found = {run.id: run for run in (read_run(find_run(text)) for text in runs or ("latest",))}
    empty = [run.id for run in found.values() if not run.comparisons]
    if empty:
        raise NothingToDo(
            f"the run {empty[0]} holds no comparisons", hint="choose a run that finished"
        )
    kept = tuple(found.values())
    if path is None:
        saved = save_baseline(name, kept, note=note, replace_existing=replace_existing)
        if as_json:
            print_json({"baseline": encode(saved)})
        else:
            print_data(f"{name}: {', '.join(saved.runs)}")
        return
    if path.exists() and not replace_existing:
        raise UsageError(f"{str(path)!r} is there already", hint="give --replace to write over it")
    write_baseline_file(path, name, kept, note=note)
    if as_json:
        print_json({"file": str(path), "runs": list(found)})
    else:
        print_data(f"{path}: {', '.join(found)}")


@click.command(name="list", help="\b\nExamples:\n  torchyard baseline list\n\nList the baselines.")
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


@click.command(help="\b\nExamples:\n  torchyard baseline show main\n\nShow the runs of a baseline.")
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
    help="\b\nExamples:\n  torchyard baseline delete main\n\nDelete a baseline name. Its runs are kept."
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

"""The group `torchyard baseline`: `save`, `list`, `show` and `delete` named runs for later comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from torchyard.cli.group import CommandTable, LazyGroup
from torchyard.cli.options import FILE
from torchyard.cli.output import common_options, print_data, print_json, print_message, print_result
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.commands.options import find_run

BASELINE_COMMANDS: Final[CommandTable] = {
    "save": (
        "torchyard.results.commands.baseline:save",
        "save runs as a baseline, or write them to a file",
    ),
    "list": ("torchyard.results.commands.baseline:list_all", "list baselines"),
    "show": ("torchyard.results.commands.baseline:show", "show the runs of a baseline"),
    "delete": (
        "torchyard.results.commands.baseline:delete",
        "delete a baseline; its runs are kept",
    ),
}
"""Name -> (location of the click command, one-line description)."""

_BASELINE_HELP = """
\b
Examples:
  torchyard baseline save main
  torchyard baseline save main 20250101T09 20250102T09 --note "two nights" --replace
  torchyard baseline save main --file base.json
  torchyard compare baseline:main latest
  torchyard gate latest --baseline main --max-slowdown 2%

A baseline is a name for runs. With several runs of the same code, comparisons also account for the
variation between sessions.
"""


@click.group(
    cls=LazyGroup,
    table=BASELINE_COMMANDS,
    name="baseline",
    help=_BASELINE_HELP,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [OPTIONS]",
)
def baseline() -> None:
    """Commands on baselines."""


_HELP = """
\b
Examples:
  torchyard baseline save main                          the latest run
  torchyard baseline save main 20250101T09 20250102T09
  torchyard baseline save main --file ci/base.json      to keep in a repository

Save runs as a named baseline. With --file, write their comparisons and facts to a file instead,
without samples, logs, paths and host names; `compare` and `gate` accept the file instead of a name.
"""


@click.command(help=_HELP)
@click.argument("name")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--note", default="", metavar="TEXT", help="A note to store with the baseline.")
@click.option("--replace", "replace_existing", is_flag=True, help="Overwrite an existing baseline.")
@click.option(
    "--file", "path", type=FILE, metavar="FILE", help="Write the comparisons to a file instead."
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
    """Save runs as a baseline."""
    from torchyard.results.baselines import check_baseline_name, save_baseline, write_baseline_file
    from torchyard.results.run_reader import read_run

    check_baseline_name(name)
    by_id = {run.id: run for run in (read_run(find_run(text)) for text in runs or ("latest",))}
    empty = [run.id for run in by_id.values() if not run.comparisons]
    if empty:
        raise NothingToDo(f"the run {empty[0]} has no comparisons", hint="choose a finished run")
    chosen = tuple(by_id.values())
    if path is None:
        saved = save_baseline(name, chosen, note=note, replace_existing=replace_existing)
        print_result({"baseline": saved}, f"{name}: {', '.join(saved.runs)}", as_json=as_json)
        return
    if path.exists() and not replace_existing:
        raise UsageError(f"{str(path)!r} already exists", hint="use --replace to overwrite it")
    write_baseline_file(path, name, chosen, note=note)
    record = {"file": str(path), "runs": list(by_id)}
    print_result(record, f"{path}: {', '.join(by_id)}", as_json=as_json)


@click.command(name="list", help="\b\nExamples:\n  torchyard baseline list\n\nList the baselines.")
@common_options
def list_all(as_json: bool) -> None:
    """List baselines."""
    from torchyard.presentation.safe_text import aligned
    from torchyard.results.baselines import list_baselines

    baselines, damaged = list_baselines()
    for error in damaged:
        print_message(f"warning: {error.what}")
    if as_json:
        print_json({"baselines": baselines, "damaged": [error.what for error in damaged]})
        return
    if not baselines:
        print_message("there are no baselines; save one with `torchyard baseline save NAME`")
        return
    rows = [
        (
            one.name,
            one.saved,
            one.runs[-1] if len(one.runs) == 1 else f"{len(one.runs)} runs, latest {one.runs[-1]}",
            one.note,
        )
        for one in baselines
    ]
    print_data(aligned(rows))


@click.command(help="\b\nExamples:\n  torchyard baseline show main\n\nShow the runs of a baseline.")
@click.argument("name")
@common_options
def show(name: str, as_json: bool) -> None:
    """Show the runs of a baseline."""
    from torchyard.results.baselines import read_baseline, runs_of

    saved = read_baseline(name)
    lines = [f"{saved.name}, saved {saved.saved}", *filter(None, [saved.note])]
    lines += [
        f"  {run.id}  {run.state}, {len(run.comparisons)} comparisons, {run.study.name}"
        for run in runs_of(saved)
    ]
    print_result({"baseline": saved}, "\n".join(lines), as_json=as_json)


@click.command(
    help="\b\nExamples:\n  torchyard baseline delete main\n\nDelete a baseline name. Its runs are kept."
)
@click.argument("name")
@common_options
def delete(name: str, as_json: bool) -> None:
    """Delete a baseline."""
    from torchyard.results.baselines import delete_baseline

    delete_baseline(name)
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)

"""`torchyard baseline save`: give runs a name, or write them to a file that travels."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import common_options, print_data, print_json
from torchyard.cli.run_choice import find_run

__all__ = ["save"]

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
    from torchyard.results.baseline_file import write_baseline_file
    from torchyard.results.baselines import check_baseline_name, save_baseline
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

"""`torchyard bench`: measure a study and show the verdicts."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.bench.commands.options import LARGEST, bench_options, request_of_options
from torchyard.cli.options import SectionedCommand
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    talk,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.core.study import Study
    from torchyard.machine.model import Wish

__all__ = ["bench", "revision_of_option"]

_HELP = """
\b
Examples:
  torchyard bench --only models/gpt
      eager against inductor on one model
  torchyard bench --suite kernels --target old=~/old/venv --target new=~/new/venv
      two builds of torch against each other
  torchyard bench --only models/resnet --mode training --preload tcmalloc=libtcmalloc.so.4
      the system's allocator against another
  torchyard bench --only mine.py --baseline inductor --candidate inductor+bfloat16
      two precisions on a workload of yours
  sudo torchyard bench --only models/gpt --tune
      on a quieted machine, put back afterwards
  torchyard bench study.toml --time 5m --html report.html
      a study file; options override what it says

Compare variants on workloads. The verdict is faster, slower, same or undecided, with an
interval that holds for processes started anew. Results are kept in a run folder.
"""


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument(
    "study",
    required=False,
    metavar="[STUDY.toml]",
    type=click.Path(dir_okay=False, path_type=Path),
)
@bench_options
@common_options
def bench(study: Path | None, as_json: bool, **options: Any) -> int:
    """Assemble the study and run it, or only show it."""
    from torchyard.bench.request import Request, merge
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.study_file import read_study_file

    searched = options["batch_size"] == LARGEST
    if searched:
        options = {**options, "batch_size": None}
    below = read_study_file(study) if study is not None else Request()
    wanted = assemble(merge(below, request_of_options(options)), here=sys.executable)
    if options["dry_run"]:
        if as_json:
            from torchyard.core.records import encode

            print_json({"study": encode(wanted)})
        else:
            from torchyard.bench.commands.execution import plan_text

            print_data(plan_text(wanted))
        if searched:
            talk("the batch size of each workload would be searched for first")
        return 0
    from torchyard.bench.commands.execution import BenchSession
    from torchyard.bench.target_checks import check_devices

    wish = _wish(options, wanted)
    for name in ("html", "csv"):
        if options[name] is not None:
            check_writable(options[name], option=f"--{name}")
    check_devices([wanted])
    notes = [note.strip() for note in options["notes"] if note.strip()]
    if searched:
        wanted, found = _with_largest_batches(wanted, quiet=options["quiet"])
        notes += found
    session = BenchSession(
        study=wanted,
        folder=_folder(options["run_dir"], replace=options["replace"]),
        quiet=options["quiet"],
        wish=wish,
        revision=revision_of_option(options["revision"]),
        notes=notes,
    )
    code = session.run()
    _write_reports(session.folder, html=options["html"], csv=options["csv"])
    if as_json:
        session.print_json()
    else:
        session.print_table()
    if not options["quiet"]:
        shown = shlex.quote(str(session.folder))
        unread = session.unread_guards()
        if unread:
            talk(f"guards that did not read: {', '.join(unread)}; `torchyard report` says why")
        talk(f"run folder: {session.folder}")
        if options["html"] is None:
            talk(f"next: torchyard report {shown} --format html --output report.html")
    return code


def revision_of_option(said: str | None) -> str:
    """What is measured, as the user or the CI job names it; torch's own commit is known later."""
    from torchyard.results.run_reader import revision_from_ci

    return (revision_from_ci(os.environ) if said is None else said).strip()


def _with_largest_batches(study: Study, *, quiet: bool) -> tuple[Study, list[str]]:
    from torchyard.bench.batch_search import with_largest_batches
    from torchyard.bench.batch_sizes import try_line

    found, notes = with_largest_batches(
        study, told=None if quiet else lambda one: talk(try_line(one))
    )
    if not quiet:
        for note in notes:
            talk(note)
    return found, list(notes)


def _wish(options: dict[str, Any], study: Study) -> Wish | None:
    """How the machine is to be tuned; raises before an earlier run is replaced."""
    from torchyard.errors import UsageError
    from torchyard.machine.command_options import with_cores
    from torchyard.machine.knob import Machine
    from torchyard.machine.quieting.apply_settings import check_may_tune
    from torchyard.machine.quieting.quiet_run import wish_for

    if not options["tune"]:
        if options["cores"] is not None:
            raise UsageError("--cores has no effect", hint="add --tune, which sets cores apart")
        return None
    machine = Machine()
    check_may_tune(machine)
    wish = wish_for(options["tune_profile"], study)
    if options["cores"] is not None:
        wish, notes = with_cores(machine.files, wish, options["cores"])
        for note in notes:
            talk(f"note: {note}")
    return wish


def _folder(run_dir: Path | None, *, replace: bool) -> Path:
    from torchyard.errors import UsageError
    from torchyard.results.directory import new_run_folder, replace_run, runs_home

    if run_dir is None:
        if replace:
            raise UsageError(
                "--replace has no effect",
                why="a run in the runs' home gets a new folder each time",
                hint="add --run-dir FOLDER",
            )
        return new_run_folder(runs_home())
    if replace:
        replace_run(run_dir)
    return run_dir


def _write_reports(folder: Path, *, html: Path | None, csv: Path | None) -> None:
    from torchyard.bench.commands.report import render

    for name, path in (("html", html), ("csv", csv)):
        if path is not None:
            write_file(path, render(folder, name), option=f"--{name}")
            talk(f"{name}: {path}")

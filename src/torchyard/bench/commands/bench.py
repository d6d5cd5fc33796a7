"""`torchyard bench`: measure a study and show the verdicts."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.bench.commands.options import LARGEST, bench_options, request_of_options
from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.options import SectionedCommand, without_defaults
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchyard.bench.commands.execution import BenchSession
    from torchyard.bench.time_estimate import TimeEstimate
    from torchyard.core.comparison import Comparison
    from torchyard.core.study import Study
    from torchyard.machine.model import QuietRequest


_HELP = """
\b
Examples:
  torchyard bench models/gpt
      inductor against eager on one model
  torchyard bench --suite kernels --target old=~/old/venv --target new=~/new/venv
      one PyTorch build against another
  torchyard bench --only models/resnet --mode training --preload tcmalloc=libtcmalloc.so.4
      tcmalloc against the default allocator
  torchyard bench my_model.py
      inductor against eager on your own model; my_model.py:NAME selects a function or class
  torchyard bench old.py:Net new.py:Net
      one file against another, on the inputs of the first
  torchyard bench my_model.py --baseline inductor --candidate inductor+bfloat16
      two precisions on your own model
  torchyard bench models/gpt --mode generate --candidate inductor+weights=int8
      time to the first token and per token, with quantised weights
  torchyard bench models/gpt --mode training --ranks 4 --nodes 2 --baseline ddp --candidate fsdp2
      training steps of 4 ranks on 2 nodes of a Slurm allocation
  torchyard bench --command "python a.py" --command "python b.py"
      whole programs, run alternately
  torchyard bench --script train.py --script-args "--batch 32"
      inductor against eager in the steps of a training script, which is not edited
  sudo torchyard bench --only models/gpt --tune
      on a quieted machine; its settings are restored afterwards
  torchyard bench study.toml --time 5m --html report.html
      run a study file; options override its keys

Compare variants on workloads. The verdict is faster, slower, same or undecided, with a 95 %
confidence interval that includes process-to-process variation. Results are kept in a run folder.
"""


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument(
    "files",
    nargs=-1,
    metavar="[STUDY.toml|FILE.py[:NAME]|SUITE/NAME...]",
    type=click.Path(dir_okay=False),
)
@bench_options
@common_options
def bench(files: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Assemble the study and run it, or only show it."""
    from torchyard.bench.request import Request, merge
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.study_file import read_study_file
    from torchyard.errors import UsageError

    if options["row"] is not None:
        from torchyard.bench.commands.studies import study_of_row_option

        return _run_study(study_of_row_option(files, options), options, as_json=as_json)
    if options["commands"]:
        from torchyard.bench.commands.studies import study_of_commands

        return _run_study(study_of_commands(files, options), options, as_json=as_json)
    for name in ("shell", "warmup"):
        if options[name]:
            raise UsageError(f"--{name} has no effect", hint="it applies to --command")
    if options["script"] is not None:
        from torchyard.bench.commands.studies import study_of_script

        return _run_study(study_of_script(files, options), options, as_json=as_json)
    for name in ("step", "script_args"):
        if options[name] is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} has no effect", hint="it applies to --script")
    study, python_files, workloads = _split_files(files)
    options["only"] = (*options["only"], *workloads)
    options["python_file"] = python_files[0] if python_files else None
    options["other_files"] = python_files[1:]
    search_batch = options["batch_size"] == LARGEST
    if search_batch:
        options = {**options, "batch_size": None}
    from_file = read_study_file(study) if study is not None else Request()
    explicit, defaults = without_defaults(click.get_current_context(), options)
    request = merge(merge(request_of_options(defaults), from_file), request_of_options(explicit))
    assembled = assemble(request, here=sys.executable)
    return _run_study(assembled, options, as_json=as_json, search_batch=search_batch)


def _run_study(
    assembled: Study, options: dict[str, Any], *, as_json: bool, search_batch: bool = False
) -> int:
    """Run a complete study, or only show it."""
    from torchyard.core.study import COMMAND_SUITE
    from torchyard.results.directory import runs_home

    if options["dry_run"]:
        _wish(options, assembled, dry_run=True)
        if as_json:
            from torchyard.core.records import encode

            print_json({"study": encode(assembled)})
        else:
            from torchyard.bench.commands.execution import plan_text

            print_data(plan_text(assembled))
            if not search_batch and assembled.workloads[0].suite != COMMAND_SUITE:
                print_message(_time_estimate(assembled, {}).line)
        if search_batch:
            print_message("the largest batch size of each workload would be searched for first")
        return 0
    from torchyard.bench.commands.execution import BenchSession
    from torchyard.bench.target_checks import check_devices

    wish = _wish(options, assembled)
    for name in ("html", "csv"):
        if options[name] is not None:
            check_writable(options[name], option=f"--{name}")
    targets = check_devices([assembled])
    notes = [note.strip() for note in options["notes"] if note.strip()]
    if search_batch:
        assembled, batch_notes = _with_largest_batches(assembled, quiet=options["quiet"])
        notes += batch_notes
    is_silent = options["quiet"] or assembled.workloads[0].suite == COMMAND_SUITE
    estimate = None if is_silent else _time_estimate(assembled, targets)
    if estimate is not None:
        print_message(estimate.line)
    session = BenchSession(
        study=assembled,
        folder=_folder(options["run_dir"], replace=options["replace"]),
        quiet=options["quiet"],
        wish=wish,
        revision=revision_of_option(options["revision"]),
        notes=notes,
        estimate=estimate,
    )
    code = session.run()
    _write_reports(session.folder, html=options["html"], csv=options["csv"])
    if as_json:
        session.print_json()
    else:
        session.print_table()
    if not options["quiet"]:
        stored = session.folder.parent == runs_home()
        name = session.folder.name if stored else shlex.quote(str(session.folder))
        unavailable = session.unavailable_sensors()
        if unavailable:
            print_message(
                f"unavailable sensors: {', '.join(unavailable)}; `torchyard report` shows why"
            )
        print_message(f"run folder: {session.folder}")
        if options["html"] is None:
            print_message(f"next: torchyard report {name} --output report.html")
        if code == 0 and not options["why"] and _can_be_explained(session.comparisons):
            print_message(f"why: torchyard why {name}")
        if not as_json and code != INTERRUPTED:
            session.print_answer()
    if options["why"] and code != INTERRUPTED:
        _explain(session, quiet=options["quiet"], as_json=as_json)
    return code


def _explain(session: BenchSession, *, quiet: bool, as_json: bool) -> None:
    """Explain the largest difference of the run."""
    from torchyard.cli.group import explain_run

    if not _can_be_explained(session.comparisons):
        print_message("why: no comparison is faster or slower; there is nothing to explain")
        return
    if not as_json:
        print_data("")
    explain_run(session.folder, None, quiet=quiet, as_json=as_json)


def _can_be_explained(comparisons: Sequence[Comparison]) -> bool:
    """Whether `torchyard why` can attribute a difference of the run."""
    from torchyard.core.comparison import Verdict
    from torchyard.core.study import COMMAND_SUITE, SCRIPT_SUITE

    return any(
        row.state in {Verdict.FASTER, Verdict.SLOWER}
        and row.workload.suite not in {COMMAND_SUITE, SCRIPT_SUITE}
        and row.workload.ranks == 1
        for row in comparisons
    )


def _split_files(files: tuple[str, ...]) -> tuple[Path | None, list[str], list[str]]:
    """Return the study file, the Python files and the names of workloads of the arguments."""
    from torchyard.bench.workload_text import is_python_file
    from torchyard.errors import UsageError

    python_files = [text for text in files if is_python_file(text)]
    others = [text for text in files if not is_python_file(text)]
    studies = [Path(text) for text in others if text.endswith(".toml") or Path(text).exists()]
    workloads = [text for text in others if Path(text) not in studies]
    if len(studies) > 1:
        raise UsageError(
            f"{len(studies)} study files are given, and bench takes one",
            hint="run each of them on its own",
        )
    return (studies[0] if studies else None), python_files, workloads


def revision_of_option(option: str | None) -> str:
    """Return the revision from the option, else the commit of the CI job, else an empty string."""
    from torchyard.results.run_reader import revision_from_ci

    return (revision_from_ci(os.environ) if option is None else option).strip()


def _time_estimate(study: Study, targets: dict[str, dict[str, Any]]) -> TimeEstimate:
    """Estimate the wall time of the run; a run does not depend on readable earlier runs."""
    from torchyard.bench.time_estimate import earlier_runs, estimate_time, machine_of_workloads
    from torchyard.errors import TorchyardError
    from torchyard.results.commands.options import fresh_store

    studies = {one.label: replace(study, workloads=(one,)) for one in study.workloads}
    try:
        with fresh_store() as store:
            machine = machine_of_workloads(study.workloads, targets)
            return estimate_time(study, earlier_runs(studies, store, machine=machine))
    except TorchyardError as error:
        print_message(f"warning: earlier runs are unavailable: {error.what}")
        return estimate_time(study, {})


def _with_largest_batches(study: Study, *, quiet: bool) -> tuple[Study, list[str]]:
    from torchyard.bench.batch_search import try_line, with_largest_batches

    sized_study, notes = with_largest_batches(
        study, told=None if quiet else lambda one: print_message(try_line(one))
    )
    if not quiet:
        for note in notes:
            print_message(note)
    return sized_study, list(notes)


def _wish(options: dict[str, Any], study: Study, *, dry_run: bool = False) -> QuietRequest | None:
    """Return how to quiet the machine; raise before an earlier run is replaced. A dry run needs no root."""
    from torchyard.errors import UsageError
    from torchyard.machine.command_options import with_cores
    from torchyard.machine.knob import Machine
    from torchyard.machine.quieting.apply_settings import check_may_quiet
    from torchyard.machine.quieting.quiet_run import request_for

    if not options["tune"]:
        if options["cores"] is not None:
            raise UsageError("--cores has no effect", hint="add --tune, which reserves cores")
        return None
    machine = Machine()
    if not dry_run:
        check_may_quiet(machine)
    wish = request_for(options["tune_profile"], study)
    if options["cores"] is not None:
        wish, notes = with_cores(machine.files, wish, options["cores"])
        for note in notes:
            print_message(f"note: {note}")
    return wish


def _folder(run_dir: Path | None, *, replace: bool) -> Path:
    from torchyard.errors import UsageError
    from torchyard.results.directory import new_run_folder, replace_run, runs_home

    if run_dir is None:
        if replace:
            raise UsageError(
                "--replace has no effect",
                why="each run in the results directory gets a new folder",
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
            print_message(f"{name}: {path}")

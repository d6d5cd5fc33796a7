"""`torchyard sweep run`, also without the word: plan a sweep, show the plan, run it or go on with it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.cli.sections import SectionedCommand, given_options
from torchyard.cli.sweep_options import (
    NOT_WITH_RESUME,
    check_calibration,
    sweep_options,
    sweep_request_of_options,
)

if TYPE_CHECKING:
    from torchyard.core.sweep import SweepPlan
    from torchyard.results.sweep_folder import SweepFolder

__all__ = ["run"]

_HELP = """
\b
Examples:
  torchyard sweep --suites models --plan
  torchyard sweep --suites models,kernels --backends inductor,aot_eager --time 20s
  torchyard sweep nightly.toml --shard 1/4 --run-dir part-1
  torchyard sweep --suites models --null
  torchyard sweep --resume latest

Measure whole suites: each workload in each mode and precision is a cell, compared as `torchyard
bench` does, and each precision becomes a run that all reports read. Options override the study file.
Exit code 5 when every cell failed, 6 when a result is untrusted, 130 after Ctrl-C.
"""


@click.command("run", cls=SectionedCommand, help=_HELP)
@click.argument(
    "study",
    required=False,
    metavar="[STUDY.toml]",
    type=click.Path(dir_okay=False, path_type=Path),
)
@sweep_options
@common_options
def run(study: Path | None, as_json: bool, **options: Any) -> int:
    """Plan and run, or go on."""
    from torchyard.cli.sweep_executor import check_executor_is_here
    from torchyard.cli.sweep_outlook import estimate_of
    from torchyard.cli.sweep_plan_text import sweep_plan_text
    from torchyard.cli.sweep_session import SweepSession
    from torchyard.errors import UsageError
    from torchyard.measure.device_check import check_devices

    quiet, calibrating = options["quiet"], options["calibrate"]
    folder: SweepFolder | None = None
    notes: list[str] = []
    if options["take_over"] and options["resume"] is None:
        raise UsageError("--take-over is for a sweep that is there", hint="add --resume FOLDER")
    if options["resume"] is not None:
        folder = _resumed(study, options)
        plan, notes = _left_of(folder)
    else:
        plan, notes = _plan(study, options)
    check_calibration(plan, calibrating=calibrating)
    if options["plan_only"]:
        return _show_plan(plan, folder, notes, options, as_json=as_json)
    check_executor_is_here(plan)
    if plan.executor.name == "local":
        check_devices(cell.study for cell in plan.cells)
    folder = folder or _new_folder(plan, options["run_dir"])
    try:
        estimate = estimate_of(plan, folder.folder, calibrating=calibrating, quiet=quiet)
    except KeyboardInterrupt:
        talk(f"go on with: torchyard sweep --resume {shlex.quote(str(folder.folder))}")
        raise
    if not quiet and plan.cells:
        talk(sweep_plan_text(plan, estimate, notes=notes))
    if not quiet:
        talk(f"sweep folder: {folder.folder}")
    session = SweepSession(
        folder=folder,
        quiet=quiet,
        expected_s=estimate.expected_s(),
        take_over=options["take_over"],
    )
    code = session.run()
    if as_json:
        session.print_json()
    elif session.runs:
        session.print_table()
    if not quiet:
        for name, found in session.runs.items():
            talk(f"run of {name}: {found.folder}")
    return code


def _show_plan(
    plan: SweepPlan,
    folder: SweepFolder | None,
    notes: list[str],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    """The plan is the data that was asked for."""
    from torchyard.cli.sweep_outlook import estimate_of
    from torchyard.cli.sweep_plan_text import sweep_plan_text
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo

    if not plan.cells:
        raise NothingToDo("nothing is left of this sweep", why="; ".join(notes))
    place = folder.folder if folder is not None else options["run_dir"]
    estimate = estimate_of(
        plan,
        place,
        calibrating=options["calibrate"],
        quiet=options["quiet"],
        keep=folder is not None,
    )
    if as_json:
        whole = {**encode(estimate), "time_s": encode(estimate.time_s)}
        print_json({"plan": encode(plan), "estimate": whole, "notes": notes})
    else:
        print_data(printable(sweep_plan_text(plan, estimate, all_cells=True, notes=notes)))
    return 0


def _resumed(study: Path | None, options: dict[str, Any]) -> SweepFolder:
    """The sweep to go on with; nothing beside it may say what to do."""
    from torchyard.cli.sweep_choice import find_sweep
    from torchyard.errors import UsageError
    from torchyard.results.sweep_folder import SweepFolder

    said = [str(study)] if study is not None else []
    said += given_options(click.get_current_context(), options, but=NOT_WITH_RESUME)
    if said:
        raise UsageError(
            "--resume goes on with the plan that is there",
            why=f"{', '.join(said)} would make another one",
            hint="start a new sweep for another plan, or leave that out",
        )
    folder = SweepFolder.open(find_sweep(options["resume"]))
    if not options["plan_only"]:
        with folder.driving():  # refused here, before a calibration could disturb the one that runs
            pass
    return folder


def _left_of(folder: SweepFolder) -> tuple[SweepPlan, list[str]]:
    """The plan without what is over, and how much that is."""
    from dataclasses import replace

    from torchyard.cli.sweep_text import counts_text

    statuses = folder.statuses()
    over = [status for status in statuses if status.state in ("done", "failed")]
    left = tuple(one.cell for one in statuses if one.state not in ("done", "failed"))
    notes = [f"already over, and not counted here: {counts_text(over)}"] if over else []
    return replace(folder.plan, cells=left), notes


def _new_folder(plan: SweepPlan, run_dir: Path | None) -> SweepFolder:
    from torchyard.results.run_home import new_run_folder
    from torchyard.results.sweep_folder import SweepFolder, sweeps_home

    return SweepFolder.create(run_dir or new_run_folder(sweeps_home()), plan)


def _plan(study: Path | None, options: dict[str, Any]) -> tuple[SweepPlan, list[str]]:
    """The plan that file and options make, and what is to be said of it."""
    from torchyard.cli.bench import revision_of_option
    from torchyard.config.study_file import read_sweep_file
    from torchyard.config.sweep_request import SweepRequest, check_executor_options, merge_sweeps
    from torchyard.workflow.sweep_plan import idle_patterns, plan_sweep

    below = read_sweep_file(study) if study is not None else SweepRequest()
    above = sweep_request_of_options(options)
    request = merge_sweeps(below, above)
    check_executor_options(request, above)
    plan = plan_sweep(
        request,
        here=sys.executable,
        command=sys.argv,
        revision=revision_of_option(options["revision"]),
        notes=[note.strip() for note in options["notes"] if note.strip()],
    )
    idle = idle_patterns(request, here=sys.executable)
    return plan, [f"the pattern {pattern!r} fits no workload" for pattern in idle]

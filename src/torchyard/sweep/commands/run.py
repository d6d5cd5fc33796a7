"""`torchyard sweep run`: options, plan, and start or resume of a sweep.

An option has the name of the key of the `[sweep]` table that it overrides. Lists are written with
commas, or by repeating the option.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.bench.commands.options import (
    BASELINE_OPTIONS,
    BATCH_OPTION,
    DEVICE_OPTIONS,
    LARGEST,
    LARGEST_BATCH_OPTION,
    LIMIT_OPTIONS,
    MEASURE_OPTIONS,
    NOTE_OPTIONS,
    PLACE_OPTIONS,
    STOP_OPTIONS,
    checked_numbers,
    request_of_study_options,
    spec_of_option,
)
from torchyard.cli.options import SectionedCommand, all_options, given_options, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

F = TypeVar("F", bound=Callable[..., Any])

# Written out because `core` must not be loaded for `--help`; a test holds it to the type there.
EXECUTORS: Final = ("local", "slurm")

_what, _run, _how = section("What to run"), section("What to compare"), section("How to measure")
_where, _out = section("Where cells run"), section("Where results go")

_OPTIONS: Final = (
    _what("--suites", multiple=True, metavar="LIST", help="Suites to run whole: models,kernels."),
    _what(
        "--workload",
        "workloads",
        multiple=True,
        metavar="WORKLOAD",
        help="One more: SUITE/NAME, NAME, NAME:key=value,..., FILE.py or FILE.py:THING.",
    ),
    _what(
        "--modes",
        multiple=True,
        metavar="LIST",
        help="inference (when left out), training, or inference,training.",
    ),
    _what(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="Keep workloads that fit, such as 'timm/resnet*'; any of several.",
    ),
    _what("--exclude", multiple=True, metavar="PATTERN", help="Leave out workloads that fit."),
    _what(
        "--shard",
        metavar="PART/PARTS",
        help="One of equal parts, such as 1/4; the parts of one request never overlap.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    *BASELINE_OPTIONS,
    _run(
        "--backends",
        multiple=True,
        metavar="LIST",
        help="Candidates of every cell, such as inductor,aot_eager; inductor when left out.",
    ),
    _run(
        "--precisions",
        multiple=True,
        metavar="LIST",
        help="A cell of each workload for each: float32 (when left out), float16, bfloat16, amp.",
    ),
    _run(
        "--null/--no-null",
        default=None,
        help="Each candidate is the baseline again: shows how often this machine cries wolf.",
    ),
    *PLACE_OPTIONS,
    *STOP_OPTIONS,
    *MEASURE_OPTIONS,
    *LIMIT_OPTIONS,
    _how("--cell-limit", metavar="DURATION", help="Wall time of one try at a cell; no limit."),
    _how("--tries", metavar="N", help="How often a cell is tried whose process dies or hangs; 2."),
    _where("--executor", metavar="NAME", help="local (when left out) or slurm."),
    _where(
        "--at-most",
        metavar="N",
        help="Cells under way at once, 1 here. They prepare side by side; time is taken of one.",
    ),
    _where("--partition", metavar="NAME", help="Of Slurm, as are the next ones: where jobs go."),
    _where("--account", metavar="NAME", help="Who pays."),
    _where("--qos", metavar="NAME", help="Quality of service."),
    _where("--gpus", metavar="N", help="GPUs of one job: a number, or h200:1."),
    _where("--cpus", metavar="N", help="Processors of one job."),
    _where("--job-memory", metavar="SIZE", help="Memory of one job, such as 16G."),
    _where(
        "--exclusive/--no-exclusive", default=None, help="Whether a job has its node to itself."
    ),
    _where("--job-time", metavar="DURATION", help="Time limit of a job, such as 2h."),
    _where(
        "--slurm",
        multiple=True,
        metavar="OPTION=VALUE",
        help="Another option of sbatch, such as constraint=h200.",
    ),
    _out("--plan", "plan_only", is_flag=True, help="Show the plan, and run nothing."),
    _out(
        "--calibrate",
        is_flag=True,
        help="First build each workload and run it once, for better estimates of time and memory.",
    ),
    _out(
        "--resume",
        metavar="FOLDER|latest",
        help="Go on with a sweep, with its own plan; finished cells are not repeated.",
    ),
    _out(
        "--take-over",
        is_flag=True,
        help="With --resume, measure cells here that other processes may still run: for attempts "
        "of another host or container that has ended.",
    ),
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Keep the sweep here instead of in the sweeps' home.",
    ),
    _out(
        "--name", metavar="TEXT", help="What its runs are called; the study file's name, or sweep."
    ),
    *NOTE_OPTIONS,
    _out("-q", "--quiet", is_flag=True, help="No plan and no progress on stderr."),
)

NOT_WITH_RESUME: Final = frozenset({"resume", "quiet", "calibrate", "plan_only", "take_over"})
"""Options beside these would change a plan that is already there."""


def sweep_options(command: F) -> F:
    """Every option of `sweep` except those that all commands have."""
    return all_options(_OPTIONS)(command)


def check_calibration(plan: Any, *, calibrating: bool) -> None:
    """Raise UsageError where what would be looked at is not what cells run, or not where."""
    from torchyard.errors import UsageError

    if calibrating and plan.largest_batches:
        raise UsageError(
            "--calibrate looks at workloads as they are, and their batch sizes are to be searched for",
            hint="leave it out, or name a batch size",
        )
    if calibrating and plan.executor.name != "local":
        raise UsageError(
            "--calibrate looks at this machine, and cells run elsewhere",
            hint="leave it out; kept runs of the cluster tell how long cells take",
        )


def sweep_request_of_options(options: dict[str, Any]) -> Any:
    """The `SweepRequest` that the options make; paths in them are relative to the current folder."""
    from dataclasses import replace

    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.workload_text import check_suite, choose_workload
    from torchyard.sweep.sweep_file import (
        Patterns,
        SweepRequest,
        check_executor,
        parse_shard,
        read_modes,
        read_precisions,
    )

    folder = Path.cwd()
    searched = options["batch_size"] == LARGEST
    if searched:
        options = {**options, "batch_size": None}
    suites = _listed(options["suites"])
    for suite in suites:
        check_suite(suite, where="--suites")
    whole = [WorkloadChoice(where="--suites", suite=suite) for suite in suites]
    single = [
        choose_workload(spec_of_option(text, "--workload", folder)) for text in options["workloads"]
    ]
    study = replace(
        request_of_study_options(options),
        name=(options["name"] or "").strip(),
        workloads=(*whole, *single),
        modes=read_modes(_listed(options["modes"]), where="--modes"),
        candidates=tuple(
            spec_of_option(text, "--backends", folder) for text in _listed(options["backends"])
        ),
    )
    executor = options["executor"]
    limits = checked_numbers(options, "cell_limit", "tries")
    return SweepRequest(
        study=study,
        precisions=read_precisions(_listed(options["precisions"]), where="--precisions"),
        patterns=Patterns(only=options["only"], exclude=options["exclude"]),
        shard=None if options["shard"] is None else parse_shard(options["shard"]),
        cell_s=limits.get("cell_s"),
        tries=limits.get("tries"),
        null=options["null"],
        largest_batches=True if searched else None,
        executor=None if executor is None else check_executor(executor, where="--executor"),
        executor_options=_executor_options(options),
    )


def _executor_options(options: dict[str, Any]) -> dict[str, Any]:
    """By the names that executors know."""
    names = {"job_time": "time", "job_memory": "memory", "at_most": "at-most"}
    said = ("partition", "account", "qos", "gpus", "cpus", "job_memory", "exclusive", "job_time")
    found = {
        names.get(name, name): options[name]
        for name in (*said, "at_most")
        if options[name] is not None
    }
    for text in options["slurm"]:
        name, equals, value = text.partition("=")
        found[f"slurm-{name.strip()}"] = value if equals else True
    return found


def _listed(texts: Sequence[str]) -> list[str]:
    """The words of options that take lists, each once."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


if TYPE_CHECKING:
    from torchyard.sweep.folder import SweepFolder
    from torchyard.sweep.model import SweepPlan


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
    from torchyard.bench.target_checks import check_devices
    from torchyard.errors import UsageError
    from torchyard.sweep.commands.execution import SweepSession, check_executor_is_here
    from torchyard.sweep.commands.plan_text import estimate_of, sweep_plan_text

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
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo
    from torchyard.sweep.commands.plan_text import estimate_of, sweep_plan_text

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
    from torchyard.errors import UsageError
    from torchyard.sweep.commands.manage import find_sweep
    from torchyard.sweep.folder import SweepFolder

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

    from torchyard.sweep.commands.cell_progress import counts_text

    statuses = folder.statuses()
    over = [status for status in statuses if status.state in ("done", "failed")]
    left = tuple(one.cell for one in statuses if one.state not in ("done", "failed"))
    notes = [f"already over, and not counted here: {counts_text(over)}"] if over else []
    return replace(folder.plan, cells=left), notes


def _new_folder(plan: SweepPlan, run_dir: Path | None) -> SweepFolder:
    from torchyard.results.directory import new_run_folder
    from torchyard.sweep.folder import SweepFolder, sweeps_home

    return SweepFolder.create(run_dir or new_run_folder(sweeps_home()), plan)


def _plan(study: Path | None, options: dict[str, Any]) -> tuple[SweepPlan, list[str]]:
    """The plan that file and options make, and what is to be said of it."""
    from torchyard.bench.commands.bench import revision_of_option
    from torchyard.sweep.plan import idle_patterns, plan_sweep
    from torchyard.sweep.sweep_file import (
        SweepRequest,
        check_executor_options,
        merge_sweeps,
        read_sweep_file,
    )

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
